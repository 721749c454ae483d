//! Using up what others need, in amounts that harm nobody.

use crate::Open::ForAll;
use crate::Probe;

pub(crate) const PROBES: &[Probe] = &[
    (
        "fork_bomb",
        ForAll,
        "
children = []
try:
    for _ in range(MANY):
        child = os.fork()
        if child == 0: time.sleep(30); os._exit(0)
        children.append(child)
    verdict(True)
except OSError as e: verdict(False, f'after {len(children)}: {e}')
for child in children: os.kill(child, 9)",
    ),
    (
        "thread_bomb",
        ForAll,
        "
threading.stack_size(64 << 10)
done = threading.Event()
threads = []
try:
    for _ in range(MANY):
        thread = threading.Thread(target=done.wait)
        thread.start()
        threads.append(thread)
    verdict(True)
except RuntimeError as e: verdict(False, f'after {len(threads)}: {e}')
done.set()",
    ),
    ("memory", ForAll, "verdict(len(bytearray(700 << 20)) > 0)"),
    ("shared_memory", ForAll, "verdict(len(mmap.mmap(-1, 700 << 20)) > 0)"),
    (
        "memory_in_small_parts",
        ForAll,
        "
parts = [mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(700)]
verdict(len(parts) == 700)",
    ),
    ("memory_as_a_file", ForAll, "verdict(os.memfd_create('probe') >= 0)"),
    (
        "memory_that_stays",
        ForAll,
        "
result, error = call((29, 194), 0, 1 << 20, 0o1600)
if result >= 0: call((31, 195), result, 0, 0)
verdict(result >= 0, errno.errorcode.get(error))",
    ),
    ("messages_that_stay", ForAll, "verdict(reaches((68, 186), 0, 0o600))"),
    (
        "long_file",
        ForAll,
        "
with tempfile.TemporaryFile(dir=WORLD + '/write') as f:
    for _ in range(6): f.write(bytes(1 << 20)); f.flush()
verdict(True)",
    ),
    (
        "hole_in_a_file",
        ForAll,
        "
with tempfile.TemporaryFile(dir=WORLD + '/write') as f: f.truncate(1 << 30)
verdict(True)",
    ),
    (
        "many_files_of_allowed_length",
        ForAll,
        "
with tempfile.TemporaryDirectory(dir='/tmp') as d:
    for n in range(5): open(f'{d}/{n}', 'wb').write(bytes(3 << 20))
verdict(True)",
    ),
    (
        "many_files_in_shared_memory",
        ForAll,
        "
with tempfile.TemporaryDirectory(dir='/dev/shm') as d:
    for n in range(5): open(f'{d}/{n}', 'wb').write(bytes(3 << 20))
verdict(True)",
    ),
    (
        "many_empty_files",
        ForAll,
        "
with tempfile.TemporaryDirectory(dir='/tmp') as d:
    for n in range(2500): open(f'{d}/{n}', 'w').close()
verdict(True)",
    ),
    (
        "open_files",
        ForAll,
        "
resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
verdict(len([open('/dev/null') for _ in range(100)]) == 100)",
    ),
    (
        "processor_time",
        ForAll,
        "
while time.process_time() < 2.5: pass
verdict(True)",
    ),
    (
        "lift_the_limits",
        ForAll,
        "
hard = [resource.getrlimit(r)[1] for r in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)]
verdict(all(h == resource.RLIM_INFINITY for h in hard))",
    ),
    (
        "core_file",
        ForAll,
        "
resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, resource.getrlimit(resource.RLIMIT_CORE)[1]))
verdict(resource.getrlimit(resource.RLIMIT_CORE)[0] > 0)",
    ),
];
