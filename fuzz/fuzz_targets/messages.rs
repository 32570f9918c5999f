#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("messages"),
    |data: &[u8]| copperfs_fuzz::wire::messages(data)
);
