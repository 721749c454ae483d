//! Broken weight files, many of them: no panic, and no allocation out of proportion to the file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use surefoot_tensor::weights::{OutTensor, Store, fuzz, write_gguf, write_safetensors};

/// The largest single allocation since the last look.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watching;

// SAFETY: every call is passed on unchanged to the system's allocator; the counter beside it allocates nothing.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static WATCHING: Watching = Watching;

/// Splitmix64: small, seeded, and enough to break files with.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }
}

/// Lengths that break arithmetic.
const HOSTILE: [u64; 12] =
    [0, 1, 7, 31, 255, 65_536, u32::MAX as u64, 1 << 40, 1 << 60, i64::MAX as u64, u64::MAX - 31, u64::MAX];

/// One to three faults: a flipped bit, a random byte, a hostile number of four or eight bytes, a cut, bytes taken out, doubled.
fn broken(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len());
        let hostile = HOSTILE[dice.below(HOSTILE.len())].to_le_bytes();
        let width = [4, 8][dice.below(2)];
        match dice.below(7) {
            _ if bytes.is_empty() => {}
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at] = dice.roll() as u8,
            2 if at + width <= bytes.len() => bytes[at..at + width].copy_from_slice(&hostile[..width]),
            3 => bytes.truncate(at),
            4 => {
                let end = (at + 1 + dice.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                let end = (at + 1 + dice.below(64)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            // A hostile number in text, for JSON headers.
            _ => {
                let text = HOSTILE[dice.below(HOSTILE.len())].to_string();
                let end = (at + 1).min(bytes.len());
                bytes.splice(at..end, text.bytes());
            }
        }
    }
    bytes
}

/// Breaks a valid file `n` times; gives how many broken ones were still read without an error.
fn survive<E>(what: &str, valid: &[u8], n: u64, read: impl Fn(&[u8]) -> Result<(), E>) -> u64 {
    assert!(read(valid).is_ok(), "{what}: the valid file is refused");
    let mut accepted = 0;
    for seed in 0..n {
        let bytes = broken(valid, &mut Dice(seed));
        LARGEST.store(0, Ordering::Relaxed);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(&bytes).is_ok()));
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(result.is_ok(), "{what}: seed {seed} panics");
        // What a header of that size can honestly describe, and what a message or a map takes in any case.
        assert!(
            largest <= 32 * bytes.len() + 4096,
            "{what}: seed {seed}: {largest} bytes for a file of {}",
            bytes.len()
        );
        accepted += u64::from(result.is_ok_and(|read| read));
    }
    accepted
}

// One test, since the allocator is watched for the whole process.
#[test]
fn broken_weight_files_neither_panic_nor_ask_for_much_memory() {
    let path = Path::new("fuzz");
    let values: Vec<f32> = (0..512).map(|i| i as f32 * 0.01).collect();
    let mut gguf = Vec::new();
    let stores = [("a", Store::F32), ("b", Store::F16), ("c", Store::Bf16), ("d", Store::Q8_0)];
    let tensors: Vec<_> = stores.iter().map(|(n, s)| (OutTensor::new(*n, [2, 32], &values[..64]), *s)).collect();
    write_gguf(path, &mut gguf, &[], &tensors).expect("a valid file");
    let mut safetensors = Vec::new();
    let tensors = [OutTensor::new("a", [4, 8], &values[..32]), OutTensor::new("b", [], &values[..1])];
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    write_safetensors(path, &mut safetensors, tensors, &metadata).expect("a valid file");
    let index = br#"{"metadata":{"total_size":8},"weight_map":{"a":"x-1.safetensors","b":"sub/x-2.safetensors"}}"#;
    let python = include_bytes!("fixtures/python.gguf");

    // The file that takes most bytes, relabelled as every encoding that is read.
    let mut blocks = Vec::new();
    write_gguf(path, &mut blocks, &[], &[(OutTensor::new("k", [2, 256], &values), Store::F32)]).expect("a valid file");
    let dims = [256u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
    let at = blocks.windows(16).position(|w| w == dims).expect("the dimensions are in the header") + 16;
    for id in [0u32, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30] {
        blocks[at..at + 4].copy_from_slice(&id.to_le_bytes());
        // Zeros are finite in every encoding.
        let start = blocks.len() - 2048;
        blocks[start..].fill(0);
        survive(&format!("encoding {id}"), &blocks, 2_000, fuzz::fuzz_gguf);
    }

    let n = 15_000;
    for (what, accepted) in [
        ("gguf", survive("gguf", &gguf, n, fuzz::fuzz_gguf)),
        ("gguf with all metadata", survive("gguf with all metadata", python, n, fuzz::fuzz_gguf)),
        ("safetensors", survive("safetensors", &safetensors, n, fuzz::fuzz_safetensors)),
        ("index", survive("index", index, n, fuzz::fuzz_safetensors_index)),
    ] {
        // Faults in values are no faults of the file, so some are read; if all were, nothing would be broken.
        assert!(accepted > 0 && accepted < n * 9 / 10, "{what}: {accepted} of {n} accepted");
    }
}
