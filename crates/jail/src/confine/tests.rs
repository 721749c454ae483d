//! Each wall alone: what a system without the others would still hold.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::child::Running;
use crate::once::answer;
use crate::{Finished, JailError, Layer, Layers, Rules, Spec, layers};

/// This system as if it lacked some layers.
fn without(absent: &[Layer]) -> Layers {
    let mut found = layers().clone();
    found.absent.extend(absent.iter().map(|layer| (*layer, "left out for a test".to_owned())));
    found
}

fn python(script: &str, rules: Rules, layers: &Layers) -> Result<Finished, JailError> {
    let mut spec = Spec::new("python3").args(["-c", script]).confined(rules);
    spec.variables = vec![("PATH".into(), "/usr/bin:/usr/local/bin:/bin".into())];
    let running = Running::start_behind(&spec, layers)?;
    answer(running, b"", Instant::now(), spec.deadline, &AtomicBool::new(false))
}

fn check(script: &str, rules: Rules, layers: &Layers, want: &str) {
    let got = python(script, rules, layers).unwrap();
    let said = String::from_utf8_lossy(&got.stderr);
    assert_eq!(String::from_utf8_lossy(&got.stdout), want, "{script}: {said}");
}

/// Everything is there that the test leaves.
fn has_all() -> bool {
    layers().absent().next().is_none()
}

#[test]
fn a_missing_layer_is_refused_with_its_reason_unless_it_is_allowed_by_name() {
    for layer in [Layer::Namespaces, Layer::Files, Layer::SystemCalls, Layer::Processes] {
        let lacking =
            Layers { absent: BTreeMap::from([(layer, "for a test".to_owned())]), landlock: 7, own_proc: true };
        assert_eq!(lacking.missing(&Rules::default()), [layer]);
        let error = python("", Rules::default(), &lacking).unwrap_err().to_string();
        assert_eq!(error, format!("cannot confine `python3`: this system lacks `{layer}` (for a test)"));
        let rules = Rules { allow_missing: vec![layer], ..Rules::default() };
        assert_eq!(lacking.missing(&rules), []);
    }
}

#[test]
fn walls_behind_walls_are_needed_only_where_the_first_is_missing() {
    let lacking = |absent: &[Layer]| Layers {
        absent: absent.iter().map(|layer| (*layer, String::new())).collect(),
        landlock: 3,
        own_proc: true,
    };
    let old = lacking(&[Layer::Network, Layer::Scopes]);
    assert_eq!(old.missing(&Rules::default()), []);
    assert_eq!(old.missing(&Rules { network: true, ..Rules::default() }), [Layer::Scopes]);
    let bare = lacking(&[Layer::Namespaces, Layer::Network, Layer::Scopes]);
    assert_eq!(bare.missing(&Rules::default()), [Layer::Namespaces, Layer::Scopes]);
    let none = lacking(&Layer::ALL);
    assert_eq!(none.missing(&Rules::default()), Layer::ALL);
    assert_eq!(none.missing(&Rules { allow_missing: Layer::ALL.to_vec(), ..Rules::default() }), []);
}

#[test]
fn without_namespaces_landlock_and_seccomp_still_hold() {
    if !has_all() {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let (given, hidden) = (folder.path().join("given"), folder.path().join("hidden"));
    for path in [&given, &hidden] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("file"), "secret").unwrap();
    }
    let bare = without(&[Layer::Namespaces, Layer::Processes]);
    let rules = Rules {
        read: vec![given.clone()],
        allow_missing: vec![Layer::Namespaces, Layer::Processes],
        ..Rules::default()
    };
    let script = format!(
        "
import os, socket, tempfile
def tries(what, why):
    try: what(); print('open', why)
    except OSError as e: print(e.errno, why)
print(open('{given}/file').read())
tries(lambda: open('{hidden}/file'), 'hidden')
tries(lambda: open('{given}/file', 'w'), 'write')
tries(lambda: open('/etc/shadow'), 'passwords')
tries(lambda: open('/proc/{parent}/environ'), 'environment')
tries(lambda: os.kill({parent}, 0), 'signal')
tries(lambda: socket.socket(socket.AF_INET), 'internet')
tries(lambda: socket.socket(socket.AF_UNIX), 'unix')
socket.socketpair()
with tempfile.TemporaryFile() as f: f.write(b'x')
print(os.environ['HOME'] == os.getcwd() == tempfile.gettempdir() != '/tmp')
open('/dev/null', 'w')
",
        given = given.display(),
        hidden = hidden.display(),
        parent = std::process::id(),
    );
    let want = "secret\n13 hidden\n13 write\n13 passwords\n13 environment\n1 signal\n1 internet\n1 unix\nTrue\n";
    check(&script, rules.clone(), &bare, want);
    // Nothing takes writing away again below a folder for writing.
    let nested = Rules { read: vec![given], write: vec![folder.path().to_owned()], ..rules };
    assert!(matches!(python("", nested, &bare), Err(JailError::Given { .. })));
}

#[test]
fn without_namespaces_its_temporary_folder_goes_with_it() {
    if !has_all() {
        return;
    }
    let allow_missing = vec![Layer::Namespaces, Layer::Processes];
    let script = "import os; open(os.environ['TMPDIR'] + '/x', 'w'); print(os.environ['TMPDIR'], end='')";
    let rules = Rules { allow_missing, ..Rules::default() };
    let got = python(script, rules, &without(&[Layer::Namespaces, Layer::Processes])).unwrap();
    let folder = String::from_utf8(got.stdout).unwrap();
    assert!(folder.starts_with('/') && !std::path::Path::new(&folder).exists(), "{folder}");
}

#[test]
fn without_landlock_the_own_root_still_holds() {
    if !has_all() {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::write(folder.path().join("file"), "secret").unwrap();
    let landlock = [Layer::Files, Layer::Network, Layer::Scopes];
    let rules = Rules { allow_missing: landlock.to_vec(), ..Rules::default() };
    let script = format!(
        "
import os
print(os.path.exists('{}'), os.path.exists('/etc/shadow'), os.path.exists('/root'))
try: open('/usr/new', 'w'); print('open')
except OSError as e: print(e.errno)
try: open('/new', 'w'); print('open')
except OSError as e: print(e.errno)
",
        folder.path().display()
    );
    check(&script, rules, &without(&landlock), "False False False\n30\n30\n");
}

#[test]
fn without_seccomp_there_is_no_capability_and_no_network_to_use() {
    if !has_all() {
        return;
    }
    let rules = Rules { allow_missing: vec![Layer::SystemCalls], ..Rules::default() };
    let script = "
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0), ctypes.get_errno())
try: socket.create_connection(('127.0.0.1', 9), 5)
except OSError as e: print(e.errno)
";
    // Not permitted; the loopback of its own is down.
    check(script, rules, &without(&[Layer::SystemCalls]), "-1 1\n13\n");
}
