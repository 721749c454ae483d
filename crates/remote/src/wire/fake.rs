//! A server for tests: it answers what the test says, and can lie, break off and fall silent.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// One request as it came in.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What is answered.
pub(crate) enum Reply {
    Json(u16, Value),
    /// Status, further header lines, body.
    Raw(u16, &'static str, Vec<u8>),
    /// Promises more bytes than it sends.
    CutOff(Vec<u8>),
    /// Never answers.
    Hang,
    /// Closes at once.
    Drop,
}

type Script = Arc<dyn Fn(usize, &Asked) -> Reply + Send + Sync>;

pub(crate) struct FakeServer {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    over: Arc<AtomicBool>,
}

impl FakeServer {
    /// A server that answers its n-th request, from 0, by a script.
    pub(crate) fn start(script: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (script, seen, gone): (Script, _, _) = (Arc::new(script), asked.clone(), over.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if gone.load(Ordering::SeqCst) {
                    return;
                }
                let (script, seen, gone) = (script.clone(), seen.clone(), gone.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &script, &seen, &gone));
            }
        });
        FakeServer { url, asked, over }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
    }
}

fn serve(mut stream: TcpStream, script: &Script, seen: &Mutex<Vec<Asked>>, over: &AtomicBool) {
    let Some(asked) = read(&mut stream) else { return };
    let n = {
        let mut seen = seen.lock().unwrap();
        seen.push(asked.clone());
        seen.len() - 1
    };
    let (status, head, body, more) = match script(n, &asked) {
        Reply::Json(status, value) => {
            (status, "content-type: application/json\r\n", serde_json::to_vec(&value).unwrap(), 0)
        }
        Reply::Raw(status, head, body) => (status, head, body, 0),
        Reply::CutOff(body) => (200, "", body, 10),
        Reply::Drop => return,
        Reply::Hang => {
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            return;
        }
    };
    let length = body.len() + more;
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{head}\r\n");
    drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)));
}

fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    let end = loop {
        match bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            Some(at) => break at + 4,
            None => match stream.read(&mut piece).ok()? {
                0 => return None,
                n => bytes.extend_from_slice(&piece[..n]),
            },
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|l| {
        let (name, value) = l.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = bytes.split_off(end);
    while body.len() < length.unwrap_or(0) {
        match stream.read(&mut piece).ok()? {
            0 => return None,
            n => body.extend_from_slice(&piece[..n]),
        }
    }
    let mut first = head.split_whitespace();
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    Some(Asked { method, path, head, body })
}
