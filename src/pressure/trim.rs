//! Gives freed memory back to the kernel, and decides which memory comes from it directly.
//!
//! The C library keeps what is freed. It returns only the end of its heap by itself, and blocks of 1 MiB are on the heap.
//! Memory directly from the kernel would be returned at once, but every block would then cost page faults.

/// The size in bytes from which memory comes from the kernel directly: that of the buffer of each FUSE thread, of which only
/// the beginning is used. On the heap the C library would fill all of it with zeros, so that it would need real memory.
#[cfg(target_env = "gnu")]
const DIRECT_BYTES_MIN: libc::c_int = 16 << 20;

/// Fixes this size. By itself it would grow with the first buffer that is freed, beyond the size of these buffers. Called
/// once, when a daemon begins.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "mallopt(3) has no safe form")]
pub fn keep_large_buffers_sparse() {
    // SAFETY: it takes numbers, and may be called at any time.
    let set = unsafe {
        // The end of the heap is returned from twice this size on, as if both had grown by themselves.
        libc::mallopt(libc::M_MMAP_THRESHOLD, DIRECT_BYTES_MIN)
            & libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * DIRECT_BYTES_MIN)
    };
    if set != 1 {
        tracing::debug!("large buffers of FUSE threads may need memory");
    }
}

/// Other C libraries have no such sizes.
#[cfg(not(target_env = "gnu"))]
pub fn keep_large_buffers_sparse() {}

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
