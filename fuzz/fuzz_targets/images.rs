#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("images"),
    |data: &[u8]| copperfs_fuzz::images::images(data)
);
