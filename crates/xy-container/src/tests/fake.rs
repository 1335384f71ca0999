//! A scripted engine at a socket, with the requests that are used here.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::*;

/// The behaviour of an engine while it fetches an image.
#[derive(Debug, Clone)]
pub(crate) enum Fetch {
    /// These messages, and then the image is present.
    Delivers(Vec<Value>),
    /// These messages, and then nothing more.
    Stalls(Vec<Value>),
    /// This message again and again.
    NeverEnds(Value),
}

/// A scripted engine.
pub(crate) struct Fake {
    pub(crate) socket: PathBuf,
    pub(crate) is_podman: bool,
    has_image: Mutex<bool>,
    fetch: Mutex<Fetch>,
    /// Why it starts no container that has an init.
    pub(crate) no_init: Option<&'static str>,
    /// Why it creates no container that has an init.
    pub(crate) no_init_made: Option<&'static str>,
    /// Whether requests have to wait.
    is_silent: watch::Sender<bool>,
    /// The requests, without those for its version.
    asked: watch::Sender<Vec<String>>,
    /// The bodies of create requests.
    made: Mutex<Vec<Value>>,
    /// Process id of the leader of its containers.
    pub(crate) pid: u32,
    /// Whether wait requests are never answered, so that an exit is only seen by inspection.
    pub(crate) hides_exits: bool,
    /// Its other containers: ids and labels.
    left: Mutex<Vec<(String, BTreeMap<String, String>)>>,
    /// Whether removal requests are never answered.
    pub(crate) removes_for_ever: bool,
    /// How the container exited, and whether for lack of memory.
    ended: watch::Sender<Option<(i64, bool)>>,
    /// Number of inspections until the container is gone.
    gone_after: Mutex<Option<usize>>,
    /// Receives the attached streams.
    streams: mpsc::Sender<UnixStream>,
    most_streams: Mutex<usize>,
    /// The container's log: output from the time when no stream was attached.
    pub(crate) said: Mutex<Vec<u8>>,
    _folder: tempfile::TempDir,
}

fn locked<T>(it: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a frame of output, as on an attached stream.
pub(crate) fn frame(said: &[u8]) -> Vec<u8> {
    let length = u32::try_from(said.len()).unwrap().to_be_bytes();
    [&[1, 0, 0, 0], length.as_slice(), said].concat()
}

impl Fake {
    /// Starts an engine that has the image, or fetches it like this.
    pub(crate) fn start(
        fetch: Option<Fetch>,
        change: impl FnOnce(&mut Self),
    ) -> (Arc<Self>, mpsc::Receiver<UnixStream>) {
        let folder = tempfile::tempdir().unwrap();
        let (streams, attached) = mpsc::channel(8);
        let mut fake = Self {
            socket: folder.path().join("engine.sock"),
            is_podman: false,
            has_image: Mutex::new(fetch.is_none()),
            fetch: Mutex::new(fetch.unwrap_or(Fetch::Delivers(Vec::new()))),
            no_init: None,
            no_init_made: None,
            is_silent: watch::Sender::default(),
            asked: watch::Sender::default(),
            made: Mutex::default(),
            pid: 4711,
            hides_exits: false,
            left: Mutex::default(),
            removes_for_ever: false,
            ended: watch::Sender::default(),
            gone_after: Mutex::default(),
            streams,
            most_streams: Mutex::new(usize::MAX),
            said: Mutex::default(),
            _folder: folder,
        };
        change(&mut fake);
        let (fake, listener) = (Arc::new(fake), UnixListener::bind);
        let listener = listener(&fake.socket).unwrap();
        let serves = fake.clone();
        tokio::spawn(async move {
            while let Ok((visitor, _)) = listener.accept().await {
                tokio::spawn(serves.clone().serve(visitor));
            }
        });
        (fake, attached)
    }

    /// Makes the image present.
    pub(crate) fn add_image(&self) {
        *locked(&self.has_image) = true;
    }

    /// Leaves all attach requests after so many unanswered.
    pub(crate) fn limit_streams(&self, most: usize) {
        *locked(&self.most_streams) = most;
    }

    /// Leaves all requests unanswered while this is set.
    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.is_silent.send_replace(is_silent);
    }

    /// Adds a container with these labels.
    pub(crate) fn add_container(&self, id: &str, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        locked(&self.left).push((id.to_owned(), labels.collect()));
    }

    /// Returns the ids of all added containers that still exist.
    pub(crate) fn container_ids(&self) -> Vec<String> {
        locked(&self.left).iter().map(|(id, _)| id.clone()).collect()
    }

    /// Removes the container after so many inspections.
    pub(crate) fn remove_after(&self, times: usize) {
        *locked(&self.gone_after) = Some(times);
    }

    pub(crate) fn exit(&self, code: i64, is_oom: bool) {
        self.ended.send_replace(Some((code, is_oom)));
    }

    /// Waits until so many requests contain this text.
    pub(crate) async fn wait_for_request(&self, what: &str, times: usize) {
        let count = |asked: &Vec<String>| asked.iter().filter(|it| it.contains(what)).count();
        self.asked.subscribe().wait_for(|asked| count(asked) >= times).await.unwrap();
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.asked.borrow().clone()
    }

    /// Returns for each created container whether it has an init.
    pub(crate) fn inits(&self) -> Vec<bool> {
        let made = locked(&self.made);
        made.iter().map(|it| it["HostConfig"]["Init"] == true).collect()
    }

    /// Serves one request of a connection.
    async fn serve(self: Arc<Self>, visitor: UnixStream) -> Option<()> {
        let mut visitor = BufReader::new(visitor);
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            visitor.read_line(&mut line).await.ok()?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(it) = line.to_lowercase().strip_prefix("content-length:") {
                length = it.trim().parse().ok()?;
            }
            head.push(line);
        }
        let mut body = vec![0; length];
        visitor.read_exact(&mut body).await.ok()?;
        let mut words = head.first()?.split(' ');
        let (method, asked) = (words.next()?, words.next()?);
        let (path, query) = asked.split_once('?').unwrap_or((asked, ""));
        let label = label_in(&unescaped(query));
        let path = match path.strip_prefix("/v1").and_then(|it| it.split_once('/')) {
            Some((_, rest)) => format!("/{rest}"),
            None => path.to_owned(),
        };
        let what = format!("{method} {path}");
        if !what.contains("/version") {
            self.asked.send_modify(|asked| asked.push(what.clone()));
        }
        self.is_silent.subscribe().wait_for(|is_silent| !is_silent).await.ok()?;
        if what == "GET /containers/json" {
            let found = self.labelled(&label.unwrap_or_default()).to_string();
            return send(visitor.get_mut(), 200, "application/json", found.as_bytes()).await;
        }
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        self.answer(&what, body, visitor.into_inner()).await
    }

    async fn answer(&self, what: &str, body: Value, mut to: UnixStream) -> Option<()> {
        let (status, answer) = match what.split(' ').collect::<Vec<_>>()[..] {
            [_, path] if path.ends_with("/version") => {
                let name = if self.is_podman { "Podman Engine" } else { "Engine" };
                let parts = json!([{ "Name": name, "Version": "1" }]);
                (200, json!({ "ApiVersion": "1.44", "Version": "1", "Components": parts }))
            }
            ["GET", path] if path.starts_with("/images/") => {
                let is_there = *locked(&self.has_image);
                let image = json!({ "Os": "linux", "Architecture": "amd64" });
                if is_there { (200, image) } else { (404, json!({ "message": "no such image" })) }
            }
            ["POST", "/images/create"] => return self.fetch(to).await,
            ["POST", "/containers/create"] => {
                locked(&self.made).push(body);
                match self.no_init_made {
                    Some(why) if self.inits().last() == Some(&true) => {
                        (500, json!({ "message": why }))
                    }
                    _ => (201, json!({ "Id": "abc", "Warnings": [] })),
                }
            }
            ["POST", path] if path.ends_with("/attach") => return self.attach(to).await,
            ["POST", path] if path.ends_with("/start") => match self.no_init {
                Some(why) if self.inits().last() == Some(&true) => (500, json!({ "message": why })),
                _ => (204, Value::Null),
            },
            ["POST", path] if path.ends_with("/wait") && self.hides_exits => {
                return std::future::pending().await;
            }
            ["DELETE", _] if self.removes_for_ever => return std::future::pending().await,
            ["DELETE", path] => {
                locked(&self.left).retain(|(id, _)| !path.ends_with(&format!("/{id}")));
                (204, Value::Null)
            }
            ["POST", path] if path.ends_with("/wait") => {
                let code =
                    self.ended.subscribe().wait_for(Option::is_some).await.ok()?.map(|it| it.0);
                (200, json!({ "StatusCode": code }))
            }
            ["POST", path] if path.ends_with("/stop") || path.ends_with("/kill") => {
                self.exit(143, false);
                (204, Value::Null)
            }
            ["GET", path] if path.ends_with("/logs") => {
                let said = frame(&locked(&self.said));
                return send(&mut to, 200, "application/vnd.docker.raw-stream", &said).await;
            }
            ["GET", _] => match &mut *locked(&self.gone_after) {
                Some(0) => (404, json!({ "message": "no such container" })),
                times => {
                    *times = times.map(|it| it - 1);
                    (200, self.inspected())
                }
            },
            _ => (204, Value::Null),
        };
        let text = if status == 204 { String::new() } else { answer.to_string() };
        send(&mut to, status, "application/json", text.as_bytes()).await
    }

    /// Returns its containers with this label, given by name alone or with its value.
    fn labelled(&self, label: &str) -> Value {
        let has_it = |labels: &BTreeMap<String, String>| {
            labels.iter().any(|(name, value)| label == name || label == format!("{name}={value}"))
        };
        let left = locked(&self.left);
        let found = left.iter().filter(|(_, labels)| has_it(labels));
        found.map(|(id, labels)| json!({ "Id": id, "Labels": labels })).collect()
    }

    fn inspected(&self) -> Value {
        let ended = *self.ended.borrow();
        json!({ "Id": "abc", "State": {
            "FinishedAt": if ended.is_none() { "0001-01-01T00:00:00Z" } else { "2026-11-16T10:59:55Z" },
            "Running": ended.is_none(), "Paused": false, "Pid": if ended.is_none() { self.pid } else { 0 },
            "ExitCode": ended.map_or(0, |it| it.0), "OOMKilled": ended.is_some_and(|it| it.1),
        } })
    }

    async fn fetch(&self, mut to: UnixStream) -> Option<()> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        to.write_all(head.as_bytes()).await.ok()?;
        let fetch = locked(&self.fetch).clone();
        let (mut lines, goes_on) = match fetch {
            Fetch::Delivers(lines) => (VecDeque::from(lines), None),
            Fetch::Stalls(lines) => (VecDeque::from(lines), Some(None)),
            Fetch::NeverEnds(line) => (VecDeque::new(), Some(Some(line))),
        };
        loop {
            let line = match (lines.pop_front(), &goes_on) {
                (Some(line), _) => line,
                (None, None) => break,
                (None, Some(None)) => std::future::pending().await,
                (None, Some(Some(line))) => {
                    sleep(Duration::from_secs(20)).await;
                    line.clone()
                }
            };
            to.write_all(format!("{line}\r\n").as_bytes()).await.ok()?;
        }
        self.add_image();
        Some(())
    }

    async fn attach(&self, mut to: UnixStream) -> Option<()> {
        let most = std::mem::replace(&mut *locked(&self.most_streams), 0);
        if most == 0 {
            std::future::pending::<()>().await;
        }
        *locked(&self.most_streams) = most.saturating_sub(1);
        let head = "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n\
                    Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
        to.write_all(head.as_bytes()).await.ok()?;
        self.streams.send(to).await.ok()
    }
}

/// Returns the label that a query asks for. Pure.
fn label_in(query: &str) -> Option<String> {
    let filters = query.split('&').find_map(|it| it.strip_prefix("filters="))?;
    let filters: Value = serde_json::from_str(filters).ok()?;
    Some(filters["label"][0].as_str()?.to_owned())
}

/// Decodes a part of a URL. Pure.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut all = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at(2.min(part.len()));
        all.extend(u8::from_str_radix(code, 16));
        all.extend(rest.as_bytes());
    }
    String::from_utf8_lossy(&all).into_owned()
}

async fn send(to: &mut UnixStream, status: u16, kind: &str, body: &[u8]) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    to.write_all(head.as_bytes()).await.ok()?;
    to.write_all(body).await.ok()
}
