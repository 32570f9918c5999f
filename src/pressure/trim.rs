//! Gives freed memory back to the kernel.
//!
//! The C library keeps what is freed. It returns only the end of its heap by itself, and blocks of 1 MiB are on the heap
//! since the first of them was freed (`M_MMAP_THRESHOLD` is dynamic). A fixed threshold would return each block at once,
//! but every block would then cost page faults.

/// Returns freed memory of this process to the kernel. Takes milliseconds per GiB.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "malloc_trim(3) has no safe form")]
pub fn trim() {
    // SAFETY: it takes a number, and may be called by any thread at any time. It changes no memory that is in use.
    let _trimmed = unsafe { libc::malloc_trim(0) };
}

/// Other C libraries return freed memory by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
