//! Reaching for parts of the kernel that no tool needs. What many kernels are built without (modules, starting another
//! kernel) cannot be shown open on them: the list of calls has its own test.

use crate::Open::{ForAll, ForRoot};
use crate::Probe;

pub(crate) const PROBES: &[Probe] = &[
    ("io_uring", ForAll, "verdict(reaches(425, 1, ctypes.create_string_buffer(120)))"),
    ("own_user_namespace", ForAll, "verdict(libc.unshare(0x10000000) == 0)"),
    (
        "own_user_namespace_by_clone",
        ForAll,
        "
result, error = call((56, 220), 0x10000000 | 17, 0, 0, 0, 0)
if result == 0: os._exit(0)
verdict(result > 0, errno.errorcode.get(error))",
    ),
    ("clone_with_hidden_flags", ForAll, "verdict(reaches(435, 0, 0))"),
    (
        "step_into_a_namespace",
        ForRoot,
        "verdict(reaches((308, 268), os.open(f'/proc/{PARENT}/ns/mnt', os.O_RDONLY), 0x20000))",
    ),
    (
        "mount",
        ForRoot,
        "verdict(libc.mount(b'x', b'/no/such/place', b'tmpfs', 0, 0) == 0 or ctypes.get_errno() == errno.ENOENT)",
    ),
    ("take_a_mount", ForAll, "verdict(reaches(428, -100, b'/', 0))"),
    ("new_file_system", ForRoot, "verdict(reaches(430, b'tmpfs', 0))"),
    ("keys", ForAll, "verdict(reaches((248, 217), b'user', b'probe', b'x', 1, -2))"),
    ("kernel_programs", ForRoot, "verdict(reaches((321, 280), 0, ctypes.create_string_buffer(128), 1))"),
    ("performance_counters", ForRoot, "verdict(reaches((298, 241), 0, 0, -1, -1, 0))"),
    ("page_faults", ForAll, "verdict(reaches((323, 282), 1))"),
    ("reboot", ForRoot, "verdict(reaches((169, 142), 0, 0, 0, 0))"),
    ("clock", ForAll, "verdict(reaches((227, 112), 0, 0))"),
    ("name_of_the_machine", ForRoot, "verdict(reaches((170, 161), 0, -1))"),
    ("log_of_the_kernel", ForRoot, "verdict(reaches((103, 116), 10, 0, 0))"),
    ("memory_without_randomness", ForAll, "verdict(reaches((135, 92), 0x0040000))"),
    ("type_into_a_terminal", ForAll, "verdict(reaches((16, 29), 0, 0x5412, 0))"),
    ("descriptors_of_others", ForAll, "verdict(reaches(438, -1, 0, 0))"),
    ("swap", ForRoot, "verdict(reaches((167, 224), b'/no/such/file', 0))"),
];
