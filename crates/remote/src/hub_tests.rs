//! Against a small server on this machine that can cut, change, refuse and lie.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use super::*;
use crate::{Event, Phase, PullSettings, Quiet};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NAME: &str = "hf-org--tiny@0123456789abcdef0123456789abcdef01234567";

/// A request as the server saw it: path and headers in lower case.
#[derive(Debug, Clone)]
struct Request {
    path: String,
    headers: BTreeMap<String, String>,
}

/// What the server does with the next request for a file.
#[derive(Debug, Clone)]
enum Trick {
    /// Sends only this many bytes of the body and hangs up.
    Cut(usize),
    /// Answers with this status and extra header lines.
    Status(u16, &'static str),
    /// Sends the head and then nothing for a while.
    Silence(Duration),
    /// Sends the client elsewhere.
    Redirect(String),
    /// Ignores the range that was asked for.
    Whole,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, (Vec<u8>, Option<String>)>,
    tricks: BTreeMap<String, Vec<Trick>>,
    seen: Vec<Request>,
}

struct Server {
    base: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Server { base, state }
    }

    /// A repository of these files, its list among them.
    fn with_model(files: &[(&str, &[u8])]) -> Server {
        let server = Server::start();
        for (name, bytes) in files {
            server.put(&format!("/org/tiny/resolve/{COMMIT}/{name}"), bytes, Some(&format!("\"{name}-1\"")));
        }
        let list: Vec<String> = files.iter().map(|(name, bytes)| sibling(name, bytes, true)).collect();
        server.list(&list);
        server
    }

    fn list(&self, siblings: &[String]) {
        let siblings = siblings.join(",");
        let body =
            format!(r#"{{"sha":"{COMMIT}","siblings":[{siblings}],"cardData":{{"license":"apache-2.0"}},"new":1}}"#);
        self.put("/api/models/org/tiny/revision/main?blobs=true", body.as_bytes(), None);
    }

    fn put(&self, path: &str, bytes: &[u8], etag: Option<&str>) {
        let file = (bytes.to_vec(), etag.map(str::to_string));
        self.state.lock().unwrap().files.insert(path.to_string(), file);
    }

    fn trick(&self, file: &str, tricks: &[Trick]) {
        let path = format!("/org/tiny/resolve/{COMMIT}/{file}");
        self.state.lock().unwrap().tricks.insert(path, tricks.iter().rev().cloned().collect());
    }

    fn seen(&self, part: &str) -> Vec<Request> {
        self.state.lock().unwrap().seen.iter().filter(|r| r.path.contains(part)).cloned().collect()
    }

    fn settings(&self) -> PullSettings {
        let (backoff, stall) = (Duration::from_millis(1), Duration::from_secs(20));
        let hub = HubSettings { endpoint: self.base.clone(), token: None, attempts: 3, backoff, stall };
        PullSettings { hub, ..PullSettings::default() }
    }

    fn pull(&self, store: &ModelStore) -> Result<Pulled, RemoteError> {
        store.pull("hf:org/tiny", &self.settings(), Watch::new(&Quiet, &AtomicBool::new(false)))
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read_request(&mut reader) {
        let (file, trick) = {
            let mut state = state.lock().unwrap();
            state.seen.push(request.clone());
            let trick = state.tricks.get_mut(&request.path).and_then(Vec::pop);
            (state.files.get(&request.path).cloned(), trick)
        };
        if answer(&stream, &request, file, trick).is_none() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_string());
    }
    let path = lines.first()?.split(' ').nth(1)?.to_string();
    let headers = lines[1..].iter().filter_map(|l| l.split_once(':'));
    Some(Request { path, headers: headers.map(|(k, v)| (k.to_lowercase(), v.trim().to_string())).collect() })
}

/// Sends an answer; none when the connection is to end.
fn answer(
    mut stream: &TcpStream,
    request: &Request,
    file: Option<(Vec<u8>, Option<String>)>,
    trick: Option<Trick>,
) -> Option<()> {
    let mut send = |head: String, body: &[u8]| {
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body).ok()
    };
    match &trick {
        Some(Trick::Status(status, more)) => {
            return send(format!("HTTP/1.1 {status} No\r\ncontent-length: 0\r\n{more}\r\n"), b"");
        }
        Some(Trick::Redirect(to)) => {
            return send(format!("HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: {to}\r\n\r\n"), b"");
        }
        _ => {}
    }
    let Some((bytes, etag)) = file else {
        return send("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_string(), b"");
    };
    let tag = etag.as_ref().map_or(String::new(), |e| format!("etag: {e}\r\n"));
    let same = request.headers.get("if-range").is_none_or(|t| Some(t) == etag.as_ref());
    let from = request.headers.get("range").filter(|_| same && !matches!(trick, Some(Trick::Whole)));
    let from: Option<usize> = from.map(|r| r["bytes=".len()..].trim_end_matches('-').parse().unwrap());
    let (status, range, body) = match from {
        Some(from) if from >= bytes.len() => {
            return send("HTTP/1.1 416 No\r\ncontent-length: 0\r\n\r\n".to_string(), b"");
        }
        Some(from) => {
            let range = format!("content-range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
            ("206 Partial Content", range, &bytes[from..])
        }
        None => ("200 OK", String::new(), &bytes[..]),
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{tag}{range}\r\n", body.len());
    match trick {
        Some(Trick::Cut(n)) => {
            send(head, &body[..n.min(body.len())]);
            None
        }
        Some(Trick::Silence(time)) => {
            send(head, b"");
            std::thread::sleep(time);
            None
        }
        _ => send(head, body),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn sibling(name: &str, bytes: &[u8], lfs: bool) -> String {
    let size = bytes.len();
    if lfs && name.ends_with(".safetensors") {
        let sha = sha256(bytes);
        return format!(
            r#"{{"rfilename":"{name}","size":{size},"lfs":{{"sha256":"{sha}","size":{size},"pointerSize":1}}}}"#
        );
    }
    format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"x"}}"#)
}

/// Weights longer than one piece, so that cuts fall inside.
fn weights() -> Vec<u8> {
    (0..1_000_003_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn model(weights: &[u8]) -> Vec<(&'static str, &[u8])> {
    vec![
        ("README.md", b"not fetched".as_slice()),
        ("config.json", b"{}"),
        ("model.safetensors", weights),
        ("onnx/model.onnx", b"not fetched"),
        ("tokenizer.json", b"{\"t\":1}"),
    ]
}

fn store() -> (tempfile::TempDir, ModelStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = ModelStore::new(folder.path().join("models"));
    (folder, store)
}

#[test]
fn a_repository_is_installed_whole_and_not_fetched_twice() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    let (_folder, store) = store();
    let pulled = server.pull(&store).unwrap();
    assert_eq!((pulled.name.as_str(), pulled.fetched), (NAME, true));
    assert_eq!(pulled.path, store.folder().join(NAME));
    assert_eq!(fs::read(pulled.path.join("model.safetensors")).unwrap(), bytes);
    let record = store.info(NAME).unwrap();
    assert_eq!(record.source, format!("hf:org/tiny@{COMMIT}"));
    assert_eq!(record.licence.as_deref(), Some("apache-2.0"));
    let files: Vec<&str> = record.files.iter().map(|f| f.file.as_str()).collect();
    assert_eq!(files, ["config.json", "model.safetensors", "tokenizer.json"]);
    let mut names: Vec<_> = fs::read_dir(&pulled.path).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "model.json", "model.safetensors", "tokenizer.json"],
        "nothing unfinished is left"
    );
    assert_eq!(store.resolve(NAME).unwrap(), pulled.path);

    let before = server.seen("/resolve/").len();
    assert!(!server.pull(&store).unwrap().fetched);
    assert_eq!(server.seen("/resolve/").len(), before);
    // A whole commit is known without asking anyone.
    let cancel = AtomicBool::new(false);
    let exact = format!("hf:org/tiny@{COMMIT}");
    let nowhere = HubSettings { endpoint: "http://127.0.0.1:1".into(), ..HubSettings::default() };
    let settings = PullSettings { hub: nowhere, ..PullSettings::default() };
    assert!(!store.pull(&exact, &settings, Watch::new(&Quiet, &cancel)).unwrap().fetched);
}

#[test]
fn shards_that_the_index_names_are_fetched_and_no_others() {
    let index = br#"{"weight_map":{"a":"model-1-of-2.safetensors","b":"model-2-of-2.safetensors"}}"#;
    let files: Vec<(&str, &[u8])> = vec![
        ("config.json", b"{}"),
        ("consolidated.safetensors", b"no"),
        ("model-1-of-2.safetensors", b"one"),
        ("model-2-of-2.safetensors", b"two"),
        ("model.safetensors.index.json", index),
        ("tokenizer.json", b"{}"),
    ];
    let server = Server::with_model(&files);
    let (_folder, store) = store();
    let path = server.pull(&store).unwrap().path;
    assert_eq!(fs::read(path.join("model-2-of-2.safetensors")).unwrap(), b"two");
    assert!(!path.join("consolidated.safetensors").exists());
}

#[test]
fn a_cut_connection_goes_on_where_it_ended() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    server.trick("model.safetensors", &[Trick::Cut(300_000), Trick::Cut(200_000), Trick::Cut(1)]);
    let (_folder, store) = store();
    let path = server.pull(&store).unwrap().path;
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), bytes);
    let seen = server.seen("model.safetensors");
    let ranges: Vec<Option<&str>> = seen.iter().map(|r| r.headers.get("range").map(String::as_str)).collect();
    assert_eq!(ranges, [None, Some("bytes=300000-"), Some("bytes=500000-"), Some("bytes=500001-")]);
    assert!(seen[1..].iter().all(|r| r.headers["if-range"] == "\"model.safetensors-1\""));
}

#[test]
fn a_pull_that_failed_is_not_installed_and_the_next_one_goes_on() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    server.trick("model.safetensors", &[Trick::Cut(300_000), Trick::Cut(0), Trick::Cut(0), Trick::Cut(0)]);
    let (_folder, store) = store();
    let error = server.pull(&store).unwrap_err().to_string();
    assert!(error.contains("in 3 attempts"), "{error}");
    assert!(store.list().unwrap().is_empty());
    let error = store.resolve(NAME).unwrap_err().to_string();
    assert!(error.starts_with(&format!("no model `{NAME}`")), "{error}");
    server.trick("model.safetensors", &[]);
    let path = server.pull(&store).unwrap().path;
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), bytes);
    assert_eq!(server.seen("model.safetensors").last().unwrap().headers["range"], "bytes=300000-");
    // What was finished before is not fetched again.
    assert_eq!(server.seen("tokenizer.json").len(), 1);
}

#[test]
fn a_file_that_changed_meanwhile_starts_again() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    let path = format!("/org/tiny/resolve/{COMMIT}/model.safetensors");
    // The first half is of another file with another mark.
    server.put(&path, &vec![7; bytes.len()], Some("\"old\""));
    server.trick("model.safetensors", &[Trick::Cut(400_000), Trick::Cut(0), Trick::Cut(0), Trick::Cut(0)]);
    let (_folder, store) = store();
    server.pull(&store).unwrap_err();
    server.put(&path, &bytes, Some("\"new\""));
    server.trick("model.safetensors", &[]);
    let installed = server.pull(&store).unwrap().path;
    assert_eq!(fs::read(installed.join("model.safetensors")).unwrap(), bytes);
    let last = server.seen("model.safetensors").pop().unwrap();
    assert_eq!((last.headers["range"].as_str(), last.headers["if-range"].as_str()), ("bytes=400000-", "\"old\""));
}

#[test]
fn a_changed_file_without_a_hash_is_never_mixed() {
    // No hash in the list: only the server's mark tells the versions apart, and a server without one gets no range.
    for (old_tag, new_tag) in
        [(Some("\"old\""), Some("\"new\"")), (None, None), (Some("W/\"weak\""), Some("W/\"weak\""))]
    {
        let bytes = weights();
        let files = model(&bytes);
        let server = Server::with_model(&files);
        server.list(&files.iter().map(|(n, b)| sibling(n, b, false)).collect::<Vec<_>>());
        let path = format!("/org/tiny/resolve/{COMMIT}/model.safetensors");
        server.put(&path, &vec![7; bytes.len()], old_tag);
        server.trick("model.safetensors", &[Trick::Cut(400_000), Trick::Cut(0), Trick::Cut(0), Trick::Cut(0)]);
        let (_folder, store) = store();
        server.pull(&store).unwrap_err();
        server.put(&path, &bytes, new_tag);
        server.trick("model.safetensors", &[]);
        let installed = server.pull(&store).unwrap().path;
        assert!(fs::read(installed.join("model.safetensors")).unwrap() == bytes, "{old_tag:?}");
    }
}

#[test]
fn a_server_without_ranges_is_read_from_the_start() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    server.trick("model.safetensors", &[Trick::Cut(300_000), Trick::Whole]);
    let (_folder, store) = store();
    let path = server.pull(&store).unwrap().path;
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), bytes);
}

#[test]
fn attempts_end_when_every_answer_is_cut_at_the_same_place() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    let again: Vec<Trick> = (0..50).flat_map(|_| [Trick::Cut(1000), Trick::Status(416, "")]).collect();
    server.trick("model.safetensors", &again);
    let (_folder, store) = store();
    let error = server.pull(&store).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { attempts: 3, .. }), "{error}");
}

#[test]
fn other_bytes_than_the_list_promises_are_refused() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    let path = format!("/org/tiny/resolve/{COMMIT}/model.safetensors");
    let mut flipped = bytes.clone();
    flipped[999] ^= 1;
    server.put(&path, &flipped, Some("\"x\""));
    let (_folder, store) = store();
    let error = server.pull(&store).unwrap_err().to_string();
    let (needed, got) = (sha256(&bytes), sha256(&flipped));
    assert_eq!(error, format!("`model.safetensors` has the wrong SHA-256: needed {needed}, got {got}"));
    assert_eq!(server.seen("model.safetensors").len(), 1, "bytes that came in one piece are not asked for again");

    server.put(&path, &bytes[1..], Some("\"y\""));
    let error = server.pull(&store).unwrap_err().to_string();
    assert_eq!(error, "`model.safetensors` has the wrong size: needed 1000003, got 1000002");
    assert!(store.list().unwrap().is_empty());
    server.put(&path, &bytes, Some("\"z\""));
    assert!(server.pull(&store).unwrap().fetched);
}

#[test]
fn refusals_for_good_are_not_repeated() {
    for (status, meaning) in [(404, " (no such repository, revision or file)"), (403, " (not allowed)"), (418, "")] {
        let server = Server::with_model(&model(b"w"));
        server.trick("model.safetensors", &[Trick::Status(status, "")]);
        let (_folder, store) = store();
        let error = server.pull(&store).unwrap_err().to_string();
        let url = format!("{}/org/tiny/resolve/{COMMIT}/model.safetensors", server.base);
        assert_eq!(error, format!("`{url}` answered with status {status}{meaning}"));
        assert_eq!(server.seen("model.safetensors").len(), 1);
    }
    let server = Server::start();
    let (folder, store) = store();
    let error = server.pull(&store).unwrap_err();
    assert!(matches!(error, RemoteError::Refused { status: 404, .. }), "{error}");
    assert!(!folder.path().join("models").exists(), "a repository that is not there leaves nothing behind");
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let server = Server::with_model(&model(b"w"));
    let busy = [Trick::Status(429, "retry-after: 1\r\n"), Trick::Status(503, "")];
    server.trick("model.safetensors", &busy);
    let (_folder, store) = store();
    let waits = Mutex::new(Vec::new());
    let told = |event: &Event<'_>| {
        if let Event::Retrying { file, reason, wait } = event {
            waits.lock().unwrap().push((file.to_string(), reason.to_string(), *wait));
        }
    };
    let started = std::time::Instant::now();
    let cancel = AtomicBool::new(false);
    store.pull("hf:org/tiny", &server.settings(), Watch::new(&told, &cancel)).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1));
    let file = || "model.safetensors".to_string();
    let want = [
        (file(), "status 429".to_string(), Duration::from_secs(1)),
        (file(), "status 503".to_string(), Duration::from_millis(2)),
    ];
    assert_eq!(waits.into_inner().unwrap(), want);
}

#[test]
fn a_server_that_stays_busy_is_given_up() {
    let server = Server::with_model(&model(b"w"));
    server.trick("model.safetensors", &vec![Trick::Status(500, ""); 10]);
    let (_folder, store) = store();
    let error = server.pull(&store).unwrap_err().to_string();
    assert!(error.ends_with("in 3 attempts: status 500"), "{error}");
    assert_eq!(server.seen("model.safetensors").len(), 3);
}

#[test]
fn a_silent_server_is_given_up() {
    let server = Server::with_model(&model(b"weights"));
    server.trick("model.safetensors", &vec![Trick::Silence(Duration::from_secs(30)); 3]);
    let (_folder, store) = store();
    let mut settings = server.settings();
    settings.hub.stall = Duration::from_millis(100);
    let started = std::time::Instant::now();
    let cancel = AtomicBool::new(false);
    let error = store.pull("hf:org/tiny", &settings, Watch::new(&Quiet, &cancel)).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { attempts: 3, .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_cancelled_pull_stops_soon_and_can_go_on() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    server.trick("model.safetensors", &[Trick::Silence(Duration::from_secs(30))]);
    let (_folder, store) = store();
    let cancel = AtomicBool::new(false);
    let started = std::time::Instant::now();
    let result = std::thread::scope(|scope| {
        let pull = scope.spawn(|| store.pull("hf:org/tiny", &server.settings(), Watch::new(&Quiet, &cancel)));
        while server.seen("model.safetensors").is_empty() && started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        cancel.store(true, Ordering::Relaxed);
        pull.join().unwrap()
    });
    assert!(matches!(result, Err(RemoteError::Cancelled)));
    assert!(started.elapsed() < Duration::from_secs(15));
    assert!(store.list().unwrap().is_empty());
    assert!(server.pull(&store).unwrap().fetched);
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for bad in ["../model.safetensors", "/etc/passwd", "a/../../b", "..\\\\x", "a//b", "."] {
        let server = Server::with_model(&model(b"w"));
        let mut list: Vec<String> = model(b"w").iter().map(|(n, b)| sibling(n, b, true)).collect();
        list.push(sibling(bad, b"x", false));
        server.list(&list);
        let (folder, store) = store();
        let error = server.pull(&store).unwrap_err().to_string();
        assert!(error.ends_with("a name that leaves its folder"), "{error}");
        assert!(!folder.path().join("models").exists());
    }
    // An index is the other place that names files.
    let files: Vec<(&str, &[u8])> = vec![
        ("config.json", b"{}"),
        ("model.safetensors.index.json", br#"{"weight_map":{"a":"../../x.safetensors"}}"#),
        ("tokenizer.json", b"{}"),
    ];
    let (folder, store) = store();
    let error = Server::with_model(&files).pull(&store).unwrap_err().to_string();
    assert!(error.contains("names `../../x.safetensors`, needed a plain name"), "{error}");
    assert!(!folder.path().join("x.safetensors").exists());
}

#[test]
fn a_commit_in_the_list_cannot_name_a_folder() {
    let server = Server::with_model(&model(b"w"));
    let body = r#"{"sha":"../../../../tmp/evil","siblings":[]}"#;
    server.put("/api/models/org/tiny/revision/main?blobs=true", body.as_bytes(), None);
    let (_folder, store) = store();
    let error = server.pull(&store).unwrap_err().to_string();
    assert!(error.contains("needed a commit of 40 hexadecimal digits"), "{error}");
    server.put("/api/models/org/tiny/revision/main?blobs=true", b"<html>", None);
    let error = server.pull(&store).unwrap_err();
    assert!(matches!(error, RemoteError::BadAnswer { .. }), "{error}");
}

#[test]
fn a_token_goes_to_the_hub_alone_and_into_no_message() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    let other = Server::start();
    other.put("/elsewhere", &bytes, Some("\"e\""));
    // Another host by its name; and one step inside the hub, which keeps the token.
    let elsewhere = format!("{}/elsewhere", other.base.replace("127.0.0.1", "localhost"));
    server.trick("model.safetensors", &[Trick::Redirect(elsewhere)]);
    server.put("/cache/config", b"{}", Some("\"c\""));
    server.trick("config.json", &[Trick::Redirect("/cache/config".to_string())]);
    server.trick("tokenizer.json", &[Trick::Status(401, "")]);
    let (_folder, store) = store();
    let mut settings = server.settings();
    settings.hub.token = Some(Token::new("hf_secret").unwrap());
    let cancel = AtomicBool::new(false);
    let watch = Watch::new(&Quiet, &cancel);
    let error = store.pull("hf:org/tiny", &settings, watch).unwrap_err();
    assert!(!format!("{error} {error:?} {settings:?}").contains("hf_secret"));
    assert!(error.hint().unwrap().contains("token"));
    assert!(store.pull("hf:org/tiny", &settings, watch).unwrap().fetched);
    assert!(server.seen("").iter().all(|r| r.headers["authorization"] == "Bearer hf_secret"));
    assert_eq!(server.seen("/cache/config").len(), 1);
    let elsewhere = other.seen("/elsewhere");
    assert!(elsewhere.len() == 1 && !elsewhere[0].headers.contains_key("authorization"));
}

#[test]
fn settings_that_would_leak_or_fail_are_refused() {
    let check = |endpoint: &str, token: bool, want: Option<&str>| {
        let token = token.then(|| Token::new("t").unwrap());
        let settings = HubSettings { endpoint: endpoint.to_string(), token, ..HubSettings::default() };
        let got = settings.endpoint().err().map(|e| e.to_string());
        match want {
            None => assert_eq!(got, None),
            Some(want) => assert!(got.as_ref().is_some_and(|g| g.contains(want)), "{endpoint}: {got:?}"),
        }
    };
    check("https://hub.example", true, None);
    check("http://hub.example", false, None);
    check("http://localhost:8080/", true, None);
    check("http://hub.example", true, Some("a token is sent over `https` only"));
    check("ftp://hub.example", false, Some("needed an address that begins with"));
    check("https://user:pass@hub.example", false, Some("needed a host without user"));
    check("https://", false, Some("needed an address"));
    check("https:///models", false, Some("needed a host"));
    for bad in ["", "a b", "a\r\nx: y", "é"] {
        assert!(Token::new(bad).is_err());
    }
    let env = |name: &str| match name {
        "HF_ENDPOINT" => Some("https://mirror.example".to_string()),
        "HF_TOKEN" => Some(" tok\n".to_string()),
        _ => None,
    };
    let settings = HubSettings::from_env(&env).unwrap();
    assert_eq!(settings.endpoint, "https://mirror.example");
    assert_eq!(settings.token, Some(Token::new("tok").unwrap()));
    assert_eq!(HubSettings::from_env(&|_| Some(String::new())).unwrap(), HubSettings::default());
}

#[test]
fn references_are_read_strictly() {
    let parse = |text| Reference::parse(text).map_err(|e| e.to_string());
    assert_eq!(parse("hf:a/b").unwrap(), Reference { org: "a", name: "b", rev: "main" });
    assert_eq!(parse("hf:a/b.c-d_e@refs/pr/1").unwrap(), Reference { org: "a", name: "b.c-d_e", rev: "refs/pr/1" });
    assert_eq!(encode("refs/pr/1"), "refs%2Fpr%2F1");
    for bad in
        ["hf:", "hf:a", "hf:/b", "hf:a/", "hf:a/b/c", "hf:../b", "hf:a/b@", "hf:a/b@../x", "hf:a b/c", "hf:a--b/c"]
    {
        let error = parse(bad).unwrap_err();
        assert!(error.starts_with(&format!("bad reference `{bad}`: needed `hf:ORG/NAME`")), "{error}");
    }
}

#[test]
fn two_pulls_at_once_give_one_whole_model() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    server.trick("model.safetensors", &[Trick::Cut(300_000), Trick::Cut(100_000)]);
    let (_folder, store) = store();
    let results: Vec<Pulled> = std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..4).map(|_| scope.spawn(|| server.pull(&store).unwrap())).collect();
        pulls.into_iter().map(|p| p.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|p| p.fetched).count(), 1);
    let cancel = AtomicBool::new(false);
    store.verify(NAME, Watch::new(&Quiet, &cancel)).unwrap();
    assert_eq!(server.seen("tokenizer.json").len(), 1);
}

#[test]
fn progress_grows_to_the_whole() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    let (_folder, store) = store();
    let seen = Mutex::new(Vec::new());
    let told = |event: &Event<'_>| {
        if let Event::Bytes { phase: Phase::Download, file: "model.safetensors", done_bytes, total_bytes } = event {
            seen.lock().unwrap().push((*done_bytes, *total_bytes));
        }
    };
    let cancel = AtomicBool::new(false);
    store.pull("hf:org/tiny", &server.settings(), Watch::new(&told, &cancel)).unwrap();
    let seen = seen.into_inner().unwrap();
    let size = bytes.len() as u64;
    assert!(seen.iter().all(|s| s.1 == Some(size)) && seen.is_sorted());
    assert_eq!(seen.last().unwrap().0, size);
}

#[test]
fn what_was_changed_after_it_was_finished_is_fetched_again() {
    let bytes = weights();
    let server = Server::with_model(&model(&bytes));
    server.trick("tokenizer.json", &[Trick::Status(404, "")]);
    let (_folder, store) = store();
    // `config.json` is finished when `tokenizer.json` fails.
    server.pull(&store).unwrap_err();
    let staged = crate::staging::staging_folder(store.folder(), NAME).join("config.json");
    assert!(staged.exists());
    fs::write(&staged, "{} ").unwrap();
    let path = server.pull(&store).unwrap().path;
    assert_eq!(fs::read(path.join("config.json")).unwrap(), b"{}");
    assert!(!Path::new(&staged).exists());
}
