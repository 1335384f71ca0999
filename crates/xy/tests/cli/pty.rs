//! A pseudo-terminal that a test reads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The two ends of a pseudo-terminal.
pub(crate) struct Pty {
    screen: File,
    line: OwnedFd,
}

impl Pty {
    /// Creates a terminal of `columns` columns.
    pub(crate) fn new(columns: u16) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::io::fcntl_setfd(&screen, rustix::io::FdFlags::CLOEXEC).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let line = open(name, flags, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&line, size).unwrap();
        Self { screen: screen.into(), line }
    }

    /// Returns the terminal as a program's input or output.
    pub(crate) fn stdio(&self) -> Stdio {
        self.line.try_clone().unwrap().into()
    }

    /// Closes the program's end, so that the screen ends with the program.
    pub(crate) fn watch(self) -> Screen {
        Screen { screen: self.screen }
    }

    /// Runs `command` on the terminal, and returns its exit code and output.
    pub(crate) fn run(self, command: &mut Command) -> (i32, String) {
        command.stdin(self.stdio()).stdout(self.stdio()).stderr(self.stdio());
        let mut child = command.spawn().unwrap();
        // The command holds the terminal too.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let text = self.watch().read_to_end();
        (child.wait().unwrap().code().unwrap_or(-1), text)
    }
}

/// The user's end of a terminal. Dropping it closes the terminal.
pub(crate) struct Screen {
    screen: File,
}

impl Screen {
    /// Reads until no program holds the terminal.
    pub(crate) fn read_to_end(mut self) -> String {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            match self.screen.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break, // Linux reports an error when the last program has exited.
            }
        }
        String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
    }
}
