//! A TLS proxy in front of a plain server, with a newly created certificate.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, KeyPair};
use rustix::event::{PollFd, PollFlags};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection};

/// A TLS proxy, which stops when dropped.
#[derive(Debug)]
pub struct Tls {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    certificate: String,
}

impl Tls {
    /// Starts a proxy for `host` in front of the local `port`.
    pub fn before(port: u16, host: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).expect("a host name");
        Self::with(made, port)
    }

    /// Starts a proxy whose certificate is marked `CA:TRUE`, like those of `openssl req -x509`.
    pub fn of_authority_before(port: u16, host: &str) -> Self {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signing_key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&signing_key).expect("it signs itself");
        Self::with(CertifiedKey { cert, signing_key }, port)
    }

    fn with(made: CertifiedKey<KeyPair>, port: u16) -> Self {
        let CertifiedKey { cert, signing_key } = made;
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("ring has all of them")
                .with_no_client_auth()
                .with_single_cert(vec![cert.der().clone()], key)
                .expect("the key is of the certificate");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let is_over = Arc::new(AtomicBool::new(false));
        let (config, ends) = (Arc::new(config), is_over.clone());
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let config = config.clone();
                thread::spawn(move || relay(config, &connection, port));
            }
        });
        Self { address, is_over, certificate: cert.pem() }
    }

    /// Returns the port that the proxy listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Writes the certificate to a file, for clients that must trust it.
    pub fn write_certificate(&self, file: &Path) {
        std::fs::write(file, &self.certificate).expect("a file of the test");
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address); // Wakes the accepting thread.
    }
}

fn relay(config: Arc<ServerConfig>, outside: &TcpStream, port: u16) -> io::Result<()> {
    let inside = TcpStream::connect(("127.0.0.1", port))?;
    let tls = ServerConnection::new(config).map_err(io::Error::other)?;
    let ended = pass_on(tls, outside, &inside);
    for end in [outside, &inside] {
        let _ = end.shutdown(Shutdown::Both); // One side may already be closed.
    }
    ended
}

/// Copies bytes in both directions until one side is closed.
fn pass_on(mut tls: ServerConnection, outside: &TcpStream, inside: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        while tls.wants_write() {
            tls.write_tls(&mut &*outside)?;
        }
        let mut both = [PollFd::new(outside, PollFlags::IN), PollFd::new(inside, PollFlags::IN)];
        rustix::event::poll(&mut both, None)?;
        let [is_outside, is_inside] = both.map(|end| !end.revents().is_empty());
        if is_outside {
            if tls.read_tls(&mut &*outside)? == 0 {
                return Ok(());
            }
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            tls.reader().read_exact(&mut plain)?;
            (&*inside).write_all(&plain)?;
        }
        if is_inside {
            let count = (&*inside).read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            tls.writer().write_all(&buffer[..count])?;
        }
    }
}
