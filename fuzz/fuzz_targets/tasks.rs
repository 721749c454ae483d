#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // Refusing is right, panicking is not.
    let _ = env::jsonl::fuzz(bytes);
});
