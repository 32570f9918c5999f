#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("trees"),
    |data: &[u8]| copperfs_fuzz::images::trees(data)
);
