//! Files in which xy stores its own state: JSON with a format number, limited in size, and written
//! completely or not at all. A damaged file is quarantined, never trusted and never deleted.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::atomic_file::{quarantine, read_bounded, write_atomically};

/// The content of a file that xy writes and reads. A missing file has the default content.
pub trait StoredFile: Serialize + DeserializeOwned + Default {
    /// The format number, which other versions of the file do not have.
    const FORMAT: u32;

    /// Maximum size of the file. A larger file counts as damaged.
    const FILE_SIZE: u64;

    /// The file has one line per value, for people who read it.
    const IS_PRETTY: bool;

    /// Checks the parsed content. Returns the problem if the file counts as damaged.
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }

    /// Reads the file. Quarantines a damaged file and returns a message about it. Fails if the file
    /// cannot be read at all.
    fn read(file: &Path) -> io::Result<(Self, Option<String>)> {
        let text = match read_bounded(file, Self::FILE_SIZE) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Self::default(), None));
            }
            Err(error) => return Err(error),
        };
        Ok(match parse(&text) {
            Ok(content) => (content, None),
            Err(problem) => (Self::default(), Some(quarantine(file, &problem))),
        })
    }

    /// Returns the content of the file, if it can be parsed. Never changes the file.
    fn peek(file: &Path) -> Option<Self> {
        parse(&read_bounded(file, Self::FILE_SIZE).ok()?).ok()
    }

    /// Returns the text of the file.
    fn to_text(&self) -> io::Result<Vec<u8>> {
        let whole = Whole { format: Self::FORMAT, content: self };
        if !Self::IS_PRETTY {
            return Ok(serde_json::to_vec(&whole)?);
        }
        let mut text = serde_json::to_vec_pretty(&whole)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Writes the file atomically.
    fn write(&self, file: &Path) -> io::Result<()> {
        write_atomically(file, &self.to_text()?)
    }
}

#[derive(Serialize)]
struct Whole<'a, T> {
    format: u32,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Deserialize)]
struct Header {
    format: u32,
}

fn parse<T: StoredFile>(text: &[u8]) -> Result<T, String> {
    let Header { format } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if format != T::FORMAT {
        return Err(format!("format {format} is unknown"));
    }
    let content: T = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    content.validate()?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Numbers {
        numbers: Vec<u32>,
    }

    impl StoredFile for Numbers {
        const FORMAT: u32 = 3;
        const FILE_SIZE: u64 = 64;
        const IS_PRETTY: bool = false;

        fn validate(&self) -> Result<(), String> {
            if self.numbers.contains(&13) { Err("13 is bad luck".to_owned()) } else { Ok(()) }
        }
    }

    #[derive(Default, Serialize, Deserialize)]
    struct Pretty {
        name: String,
    }

    impl StoredFile for Pretty {
        const FORMAT: u32 = 1;
        const FILE_SIZE: u64 = 64;
        const IS_PRETTY: bool = true;
    }

    fn numbers(numbers: &[u32]) -> Numbers {
        Numbers { numbers: numbers.to_vec() }
    }

    fn folder_and_file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("it.json");
        (folder, file)
    }

    fn make_pipe(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn content_survives_the_disk_in_a_private_file() {
        let (folder, file) = folder_and_file();
        numbers(&[1, 2]).write(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), r#"{"format":3,"numbers":[1,2]}"#);
        assert_eq!(Numbers::read(&file).unwrap(), (numbers(&[1, 2]), None));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        let text = Pretty { name: "x".to_owned() }.to_text().unwrap();
        assert_eq!(text, b"{\n  \"format\": 1,\n  \"name\": \"x\"\n}\n");
    }

    #[test]
    fn missing_file_has_default_content() {
        let (_folder, file) = folder_and_file();
        assert_eq!(Numbers::read(&file).unwrap(), (Numbers::default(), None));
        assert_eq!(Numbers::peek(&file), None);
    }

    #[test]
    fn damaged_file_is_quarantined_and_reported() {
        let long = format!(r#"{{"format":3,"numbers":[{}1]}}"#, "1,".repeat(64));
        for (text, problem) in [
            ("", "EOF"),
            ("{", "EOF"),
            ("[]", "invalid length"),
            (r#"{"format":9,"letters":[]}"#, "format 9 is unknown"),
            (r#"{"format":3,"numbers":7}"#, "invalid type"),
            (r#"{"format":3,"numbers":[13]}"#, "13 is bad luck"),
            (&long, "EOF"),
        ] {
            let (folder, file) = folder_and_file();
            fs::write(&file, text).unwrap();
            assert_eq!(Numbers::peek(&file), None);
            assert!(file.exists());
            let (read, message) = Numbers::read(&file).unwrap();
            assert_eq!(read, Numbers::default());
            let message = message.unwrap();
            assert!(message.contains("it.json.damaged") && message.contains(problem), "{message}");
            let aside = folder.path().join("it.json.damaged");
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
        }
    }

    #[test]
    fn damaged_file_does_not_replace_another() {
        let (folder, file) = folder_and_file();
        for text in ["first", "second"] {
            fs::write(&file, text).unwrap();
            Numbers::read(&file).unwrap();
        }
        let kept = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(kept("it.json.damaged"), "first");
        assert_eq!(kept("it.json.damaged-2"), "second");
    }

    #[test]
    fn unreadable_file_is_an_error_and_stays() {
        let (_folder, file) = folder_and_file();
        fs::create_dir(&file).unwrap();
        assert!(Numbers::read(&file).is_err());
        fs::remove_dir(&file).unwrap();
        make_pipe(&file);
        assert!(Numbers::read(&file).is_err(), "a pipe is not waited for");
        assert!(file.exists());
    }

    #[test]
    fn pipe_in_place_of_temporary_file_is_replaced() {
        let (folder, file) = folder_and_file();
        make_pipe(&folder.path().join("it.json.new"));
        numbers(&[1]).write(&file).unwrap();
        assert_eq!(Numbers::read(&file).unwrap().0, numbers(&[1]));
    }

    #[test]
    fn failed_write_leaves_old_file() {
        let (folder, file) = folder_and_file();
        numbers(&[1]).write(&file).unwrap();
        fs::create_dir(folder.path().join("it.json.new")).unwrap();
        assert!(numbers(&[2]).write(&file).is_err());
        assert_eq!(Numbers::read(&file).unwrap().0, numbers(&[1]));
    }
}
