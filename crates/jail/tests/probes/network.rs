//! Reaching for the network and for sockets outside.

use crate::Open::{ForAll, ForRoot};
use crate::Probe;

pub(crate) const PROBES: &[Probe] = &[
    ("tcp_out", ForAll, "socket.create_connection(('127.0.0.1', TCP), 5); verdict(True)"),
    ("tcp_in", ForAll, "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); verdict(True)"),
    ("tcp_six", ForAll, "socket.socket(socket.AF_INET6); verdict(True)"),
    (
        "udp_out",
        ForAll,
        "verdict(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP)) == 1)",
    ),
    (
        "names_by_dns",
        ForAll,
        "
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
question = b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\6secret\\7example\\0\\0\\1\\0\\1'
s.connect(('127.0.0.1', UDP)); verdict(s.send(question) == len(question))",
    ),
    ("abstract_socket", ForAll, "socket.socket(socket.AF_UNIX).connect('\\0' + MARK); verdict(True)"),
    ("named_socket", ForAll, "socket.socket(socket.AF_UNIX).connect(WORLD + '/host.sock'); verdict(True)"),
    ("raw_packets", ForRoot, "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); verdict(True)"),
    ("raw_ip", ForRoot, "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); verdict(True)"),
    ("tables_of_the_network", ForAll, "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); verdict(True)"),
];
