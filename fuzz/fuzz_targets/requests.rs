#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("requests"),
    |data: &[u8]| copperfs_fuzz::peers::requests(data)
);
