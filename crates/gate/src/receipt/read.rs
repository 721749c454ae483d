//! Reading receipts back, from a log that is checked while it is read.

use std::path::Path;

use ledger::{Checkpoint, Digest, Fault, Verified, Verifier};

use super::{Checked, Checker, Logged, Receipt, VERSION};

/// Reads one entry of a log.
///
/// - Errors: why it is no receipt.
pub fn parse(index: u64, entry: &[u8]) -> Result<Logged, String> {
    let receipt: Receipt = serde_json::from_slice(entry).map_err(|e| format!("it is no receipt: {e}"))?;
    match receipt.v {
        VERSION => Ok(Logged { index, digest: Digest::of(entry).to_string(), receipt }),
        got => Err(format!("it is a receipt of layout {got}, needed {VERSION}")),
    }
}

/// Shows every receipt of a log in order, and checks the log on the way.
///
/// - Errors: every fault of the log, entries that are no receipts among them; see [`ledger::verify`].
pub fn walk(
    log: &Path,
    verifier: &Verifier,
    known: Option<&Checkpoint>,
    see: &mut dyn FnMut(&Logged),
) -> Result<Verified, Vec<Fault>> {
    ledger::verify_with(log, verifier, known, &mut |index, entry| parse(index, entry).map(|logged| see(&logged)))
}

/// Every receipt of a log that has no fault.
///
/// - Errors: as [`walk`].
pub fn read(log: &Path, verifier: &Verifier) -> Result<Vec<Logged>, Vec<Fault>> {
    let mut receipts = Vec::new();
    walk(log, verifier, None, &mut |logged| receipts.push(logged.clone()))?;
    Ok(receipts)
}

/// Checks a log and what its receipts add up to.
///
/// - Holds: the second part covers whatever could be read, also of a log with faults.
pub fn verify(log: &Path, verifier: &Verifier, known: Option<&Checkpoint>) -> (Result<Verified, Vec<Fault>>, Checked) {
    let mut checker = Checker::default();
    let verified = walk(log, verifier, known, &mut |logged| checker.take(logged));
    (verified, checker.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_receipt_of_this_layout_is_refused() {
        let good = r#"{"v":1,"session":"s","call":0,"at_ms":1,"principal":{"subject":"a","agent":"b","run":"c","purpose":""},"rules_digest":"r","what":{"opened":{"tools":[],"declared":[],"limits":{}}}}"#;
        assert_eq!(parse(7, good.as_bytes()).map(|l| l.index), Ok(7));
        let reason = |text: &str| parse(0, text.as_bytes()).unwrap_err();
        assert_eq!(reason(&good.replace("\"v\":1", "\"v\":2")), "it is a receipt of layout 2, needed 1");
        for (from, to) in [("\"v\"", "\"w\""), ("opened", "closed"), ("\"call\":0", "\"call\":-1"), ("}}}}", "}}}")] {
            let text = good.replace(from, to);
            assert_ne!(text, good);
            assert!(reason(&text).starts_with("it is no receipt: "), "{text}");
        }
    }
}
