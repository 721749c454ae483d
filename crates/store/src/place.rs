//! Where things live when the user does not say.

use std::path::{Path, PathBuf};

/// The folder for models and the index of runs: `SUREFOOT_HOME`, else `XDG_DATA_HOME/surefoot`, else
/// `HOME/.local/share/surefoot`, else `.surefoot` in the working directory.
///
/// - Holds: an empty variable counts as unset, and so does a relative `XDG_DATA_HOME`, as its specification demands.
/// - Source: XDG Base Directory Specification 0.8.
pub fn default_root(env: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let get = |name: &str| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(own) = get("SUREFOOT_HOME") {
        return own;
    }
    if let Some(data) = get("XDG_DATA_HOME").filter(|p| p.is_absolute()) {
        return data.join("surefoot");
    }
    get("HOME").map_or_else(|| PathBuf::from(".surefoot"), |home| home.join(".local/share/surefoot"))
}

/// Where the model store lies under a root.
pub fn models_folder(root: &Path) -> PathBuf {
    root.join("models")
}

/// Where runs go under a root when no folder is named.
pub fn runs_folder(root: &Path) -> PathBuf {
    root.join("runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(vars: &[(&str, &str)], want: &str) {
        let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        assert_eq!(default_root(&env), PathBuf::from(want), "{vars:?}");
    }

    #[test]
    fn the_nearest_setting_decides_where_things_live() {
        check(&[("HOME", "/h")], "/h/.local/share/surefoot");
        check(&[("HOME", "/h"), ("XDG_DATA_HOME", "/x")], "/x/surefoot");
        check(&[("HOME", "/h"), ("XDG_DATA_HOME", "relative")], "/h/.local/share/surefoot");
        check(&[("HOME", "/h"), ("XDG_DATA_HOME", "")], "/h/.local/share/surefoot");
        check(&[("HOME", "/h"), ("XDG_DATA_HOME", "/x"), ("SUREFOOT_HOME", "/s")], "/s");
        check(&[], ".surefoot");
    }
}
