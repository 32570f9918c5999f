#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("answers"),
    |data: &[u8]| copperfs_fuzz::peers::answers(data)
);
