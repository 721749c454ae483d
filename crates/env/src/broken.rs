//! Broken files for tests, made from a whole one; other crates' tests include this file by its path.

use episode::random::Stream;

/// `n` copies of `whole`, each with one to four faults: a byte changed, three cut out, one of `marks` put in.
pub(crate) fn broken(purpose: &str, whole: &[u8], marks: &[u8], n: u64) -> impl Iterator<Item = Vec<u8>> {
    let stream = Stream::new(purpose, &[]);
    (0..n).map(move |case| {
        let mut bytes = whole.to_vec();
        for change in 0..1 + case % 4 {
            let at = stream.below(case * 16 + change * 4, bytes.len() as u64) as usize;
            match stream.below(case * 16 + change * 4 + 1, 3) {
                0 => bytes[at] = stream.bits(case * 16 + change * 4 + 2) as u8,
                1 => drop(bytes.drain(at..(at + 3).min(bytes.len()))),
                _ => bytes.insert(at, marks[case as usize % marks.len()]),
            }
        }
        bytes
    })
}
