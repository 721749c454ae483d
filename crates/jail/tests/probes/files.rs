//! Reaching for files that were not given.

use crate::Open::{ForAll, ForRoot};
use crate::Probe;

pub(crate) const PROBES: &[Probe] = &[
    ("home_keys", ForAll, "verdict(open(WORLD + '/home/.ssh/key').read() == 'secret')"),
    ("password_file", ForAll, "os.stat('/etc/shadow'); verdict(True)"),
    ("passwords", ForRoot, "verdict(len(open('/etc/shadow').read()) > 0)"),
    ("write_outside", ForAll, "open(WORLD + '/home/new', 'w').write('x'); verdict(True)"),
    ("write_where_anybody_may", ForAll, "tempfile.TemporaryFile(dir='/var/tmp'); verdict(True)"),
    ("write_into_what_is_given_for_reading", ForAll, "open(WORLD + '/read/new', 'w'); verdict(True)"),
    ("cut_what_is_given_for_reading", ForAll, "os.truncate(WORLD + '/read/cut', 0); verdict(True)"),
    ("change_rights_of_what_is_given_for_reading", ForAll, "os.chmod(WORLD + '/read/mode', 0o777); verdict(True)"),
    ("link_out_of_a_given_folder", ForAll, "verdict(open(WORLD + '/read/link').read() == 'secret')"),
    ("dots_out_of_a_given_folder", ForAll, "verdict(open(WORLD + '/read/../home/.ssh/key').read() == 'secret')"),
    (
        "own_link_to_the_outside",
        ForAll,
        "
at = WORLD + '/write/own-link'
if not os.path.lexists(at): os.symlink(WORLD + '/home/.ssh/key', at)
verdict(open(at).read() == 'secret')",
    ),
    (
        "hard_link_to_the_outside",
        ForAll,
        "
at = WORLD + '/write/hard-link-' + str(os.getpid())
os.link(WORLD + '/home/.ssh/key', at)
verdict(open(at).read() == 'secret')",
    ),
    (
        "move_to_the_outside",
        ForAll,
        "
at = WORLD + '/write/moves'
open(at, 'w').write('x')
os.rename(at, WORLD + '/home/moved'); verdict(True)",
    ),
    (
        "open_the_parent_of_a_given_folder",
        ForAll,
        "
fd = os.open(WORLD + '/write', os.O_RDONLY)
verdict(os.stat('../home/.ssh/key', dir_fd=fd).st_size == 6)",
    ),
    ("temporary_files_of_others", ForAll, "verdict(open(IN_TEMP).read() == 'secret')"),
    ("shared_memory_of_others", ForAll, "verdict(open(IN_SHARED_MEMORY).read() == 'secret')"),
    ("leaked_descriptor", ForAll, "verdict(os.pread(LEAKED, 6, 0) == b'secret')"),
    (
        "other_devices",
        ForAll,
        "
harmless = {'null', 'zero', 'full', 'random', 'urandom', 'fd', 'stdin', 'stdout', 'stderr', 'shm'}
verdict(bool(set(os.listdir('/dev')) - harmless))",
    ),
    (
        "make_a_device",
        ForRoot,
        "os.mknod(WORLD + '/write/null-' + str(os.getpid()), 0o20666, os.makedev(1, 3)); verdict(True)",
    ),
    ("settings_of_the_kernel", ForRoot, "open('/proc/sys/vm/swappiness', 'r+'); verdict(True)"),
    ("program_for_core_files", ForRoot, "open('/proc/sys/kernel/core_pattern', 'r+'); verdict(True)"),
    ("settings_of_devices", ForAll, "verdict(len(os.listdir('/sys')) > 0)"),
    ("write_a_system_program", ForRoot, "os.open('/usr/bin/env', os.O_WRONLY | os.O_APPEND); verdict(True)"),
    ("other_root", ForRoot, "os.chroot('/'); verdict(True)"),
    (
        "a_file_by_its_number",
        ForAll,
        "
handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 136)
mount = ctypes.c_int()
result, error = call((303, 264), -100, b'/usr', handle, ctypes.byref(mount), 0)
verdict(result == 0 or error == errno.EOVERFLOW, errno.errorcode.get(error))",
    ),
];
