//! Landlock's rules: which files, sockets, ports and signals a confined process reaches, whatever its user is.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

use super::plan::{Place, Right};
use super::sys::{self, Errno, call};

/// The newest interface this was written for; older kernels handle what they know of it.
const NEWEST: ABI = ABI::V9;

/// The version of the kernel's interface, 0 if there is none.
pub(crate) fn version() -> i32 {
    const ASK: u32 = 1;
    call!(sys::LANDLOCK_CREATE_RULESET, std::ptr::null::<u8>(), 0, ASK).map_or(0, |v| v as i32)
}

/// What a right on a place is in Landlock's terms.
pub(crate) fn access(right: Right, is_folder: bool) -> BitFlags<AccessFs> {
    let all = AccessFs::from_all(NEWEST);
    let access = match right {
        Right::Read => AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir,
        Right::Look => AccessFs::ReadFile | AccessFs::ReadDir,
        Right::List => AccessFs::ReadDir.into(),
        Right::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
        // Making a device would need a capability that it does not have either.
        Right::Write => all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev),
    };
    if is_folder { access } else { access & AccessFs::from_file(NEWEST) }
}

/// A ruleset over these places, ready to be applied, with the rights this kernel handles.
pub(crate) fn ruleset(places: &[(&Place, File)], network: bool) -> Result<Option<OwnedFd>, RulesetError> {
    let mut rules =
        Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(AccessFs::from_all(NEWEST))?;
    if !network {
        // Handled and never allowed.
        rules = rules.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let mut rules = rules.scope(Scope::from_all(NEWEST))?.create()?;
    for (place, file) in places {
        rules = rules.add_rule(PathBeneath::new(file.as_fd(), access(place.right, place.is_folder)))?;
    }
    Ok(rules.into())
}

/// Adds a place that was not there before the new root was: by number, as only these calls are safe there.
pub(crate) fn add(ruleset: c_int, path: &CStr, right: Right, version: i32) -> Result<(), Errno> {
    #[repr(C, packed)]
    struct Beneath {
        access: u64,
        parent: i32,
    }
    const PATH_BENEATH: c_int = 1;

    let fd = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC, 0)?;
    let handled = AccessFs::from_all(ABI::from(version)) & AccessFs::from_all(NEWEST);
    let rule = Beneath { access: (access(right, true) & handled).bits(), parent: fd as c_int };
    let added = call!(sys::LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, &raw const rule, 0);
    let _ = call!(libc::SYS_close, fd);
    added.map(drop)
}

/// Puts the calling process under the rules for good.
pub(crate) fn apply(ruleset: c_int) -> Result<(), Errno> {
    call!(sys::LANDLOCK_RESTRICT_SELF, ruleset, 0).map(drop)
}
