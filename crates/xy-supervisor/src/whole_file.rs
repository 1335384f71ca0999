//! Files of ours that are written whole (temporary file, fsync, rename). A damaged one is put
//! aside, never trusted and never deleted.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::plain_file::open_file;

/// Reads a file, of a larger one only so much.
pub fn read_bounded(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let opened = open_file(file)?;
    let mut text = Vec::new();
    opened.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Renames a damaged file; answers what there is to tell of it.
pub fn put_aside(file: &Path, problem: &str) -> String {
    let names = std::iter::once("damaged".to_owned()).chain((2..).map(|n| format!("damaged-{n}")));
    let mut candidates = names.map(|ending| sibling(file, &ending));
    let aside = candidates.find(|path| !path.exists()).expect("numbers do not run out");
    let kept = match fs::rename(file, &aside) {
        Ok(()) => format!("it is kept as {}", aside.display()),
        Err(error) => format!("it could not be put aside: {error}"),
    };
    format!("{} cannot be read: {problem}; {kept}", file.display())
}

fn sibling(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Writes a file, whole or not at all, for nobody else to read.
pub fn write_whole(file: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = sibling(file, "new");
    let written = (|| {
        if let Err(error) = fs::remove_file(&temporary)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut out = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        out.write_all(text)?;
        out.sync_all()?;
        fs::rename(&temporary, file)?;
        file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // It may not exist; the error above is the news.
    }
    written
}
