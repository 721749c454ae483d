#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        // Refusing is right, panicking is not.
        let _ = run::RunFile::parse(text).and_then(|file| file.resolve());
    }
});
