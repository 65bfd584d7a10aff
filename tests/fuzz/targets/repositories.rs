#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpufleet_fuzz::run("repositories", bytes));
