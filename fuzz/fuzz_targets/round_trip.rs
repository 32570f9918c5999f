#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("round_trip"),
    |data: &[u8]| copperfs_fuzz::wire::round_trip(data)
);
