#![no_main]
libfuzzer_sys::fuzz_target!(
    init: copperfs_fuzz::seeds::plant("manifests"),
    |data: &[u8]| copperfs_fuzz::manifests::manifests(data)
);
