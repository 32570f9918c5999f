#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("indexes"),
    |data: &[u8]| copperfs_fuzz::indexes::indexes(data)
);
