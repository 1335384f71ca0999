//! Real folders, and what can be wrong with them.

use std::collections::BTreeSet;

use tempfile::TempDir;

use super::*;

/// A home of its own; what is written there disappears with it.
struct Home {
    root: TempDir,
    paths: Paths,
}

impl Home {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::resolve(root.path(), |_| None).unwrap();
        fs::create_dir_all(&paths.servers_dir).unwrap();
        Self { root, paths }
    }

    fn server(&self, name: &str, text: impl AsRef<[u8]>) -> &Self {
        fs::write(self.paths.servers_dir.join(name), text).unwrap();
        self
    }

    /// All problems, with the temporary folder's name taken out.
    fn told(&self) -> String {
        let loaded = load(&self.paths, &KeptLimits::any());
        let told: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
        told.join("\n").replace(&self.root.path().display().to_string(), "HOME")
    }

    fn names(&self) -> Vec<String> {
        load(&self.paths, &KeptLimits::any())
            .settings
            .servers
            .keys()
            .map(ToString::to_string)
            .collect()
    }
}

const GOOD: &str = "command \"sh\"";

#[test]
fn without_files_there_are_no_servers_and_no_problems() {
    let home = Home::new();
    assert_eq!((home.told().as_str(), home.names().len()), ("", 0));
    assert_eq!(load(&home.paths, &KeptLimits::any()).files, 0);
    fs::write(&home.paths.daemon_file, "").unwrap();
    assert_eq!(load(&home.paths, &KeptLimits::any()).files, 1);
    fs::remove_dir_all(&home.paths.config_dir).unwrap();
    assert_eq!((home.told().as_str(), home.names().len()), ("", 0));
}

#[test]
fn servers_are_read_by_name() {
    let home = Home::new();
    home.server("b.kdl", GOOD).server("a.kdl", GOOD).server("c.kdl", GOOD);
    assert_eq!(home.names(), ["a", "b", "c"]);
    assert_eq!(load(&home.paths, &KeptLimits::any()).server_files, 3);
}

#[test]
fn the_daemons_file_gives_the_defaults() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    fs::write(&home.paths.daemon_file, "defaults { stop { grace \"3s\" } }").unwrap();
    let loaded = load(&home.paths, &KeptLimits::any());
    assert!(loaded.is_valid());
    assert_eq!(loaded.settings.servers["a"].rules.stop.grace.as_secs(), 3);
}

#[test]
fn what_is_no_server_file_is_ignored() {
    let home = Home::new();
    for name in
        ["a.kdl~", ".a.kdl.swp", ".hidden.kdl", "#a.kdl#", ".#a.kdl", "README.md", "a.kdl.bak"]
    {
        home.server(name, "not { kdl");
    }
    assert_eq!((home.told().as_str(), home.names().len()), ("", 0));
}

#[cfg(unix)]
#[test]
fn what_cannot_be_read_is_told_with_the_reason() {
    let home = Home::new();
    home.server("good.kdl", GOOD)
        .server("latin.kdl", b"command \"x\"\nargs \"\xe9\"")
        .server("large.kdl", vec![b'\n'; 1024 * 1024 + 1])
        .server("bad name.kdl", GOOD);
    let folder = &home.paths.servers_dir;
    fs::create_dir(folder.join("folder.kdl")).unwrap();
    std::os::unix::fs::symlink("/nowhere/x.kdl", folder.join("dangling.kdl")).unwrap();
    std::os::unix::fs::symlink("loop.kdl", folder.join("loop.kdl")).unwrap();
    std::os::unix::net::UnixListener::bind(folder.join("socket.kdl")).unwrap();
    fs::create_dir(&home.paths.daemon_file).unwrap();
    insta::assert_snapshot!(home.told());
    assert_eq!(home.names(), ["good"]);
}

#[test]
fn a_file_of_the_largest_size_is_still_read() {
    let home = Home::new();
    let padding = " ".repeat(1024 * 1024 - GOOD.len());
    home.server("a.kdl", format!("{GOOD}{padding}"));
    assert_eq!(home.names(), ["a"]);
}

#[cfg(unix)]
#[test]
fn a_servers_folder_that_is_none_is_an_error() {
    let home = Home::new();
    fs::remove_dir(&home.paths.servers_dir).unwrap();
    fs::write(&home.paths.servers_dir, "").unwrap();
    let as_file = home.told();
    fs::remove_file(&home.paths.servers_dir).unwrap();
    std::os::unix::fs::symlink("/nowhere", &home.paths.servers_dir).unwrap();
    insta::assert_snapshot!([as_file, home.told()].join("\n"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_not_unicode_is_a_bad_name() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let name = OsStr::from_bytes(b"a\xff.kdl");
    fs::write(home.paths.servers_dir.join(name), GOOD).unwrap();
    assert!(home.told().contains("a server's name has only letters"), "{}", home.told());
}

#[test]
fn too_many_files_are_an_error() {
    let home = Home::new();
    for number in 0..=MAX_SERVER_FILES {
        home.server(&format!("s{number}.kdl"), GOOD);
    }
    assert_eq!(home.names().len(), MAX_SERVER_FILES);
    insta::assert_snapshot!(home.told());
}

#[cfg(unix)]
#[test]
fn a_program_is_looked_for_on_the_real_disk() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let program = home.root.path().join("program");
    fs::write(&program, "").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    home.server("a.kdl", format!("command {:?}", program.display().to_string()));
    assert!(home.told().contains("is not executable"), "{}", home.told());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(home.told(), "");
    fs::remove_file(&program).unwrap();
    assert!(home.told().contains("does not exist"), "{}", home.told());
}

#[test]
fn profiles_are_read_beside_servers_and_one_that_cannot_be_read_shows_nothing() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    let folder = &home.paths.profiles_dir;
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("work.kdl"), "servers \"a\"").unwrap();
    fs::write(folder.join("default.kdl"), [0xff]).unwrap();
    fs::write(folder.join("work.kdl~"), "nonsense {").unwrap();
    let loaded = load(&home.paths, &KeptLimits::any());
    let profiles = &loaded.settings.profiles;
    assert_eq!(profiles.keys().collect::<Vec<_>>(), ["default", "work"]);
    assert_eq!(profiles["work"].servers.len(), 1);
    let closed = crate::profile::ProfileSettings::closed("default", "profiles/default.kdl");
    assert_eq!(*profiles["default"], closed);
    assert!(!loaded.is_valid());
    assert_eq!(loaded.broken, Broken::default(), "no server is the worse for it");
    assert_eq!((loaded.server_files, loaded.files), (1, 3));
}

/// A home with a file of an MCP client beside it.
fn with_client(text: &str) -> (Home, PathBuf) {
    let mut home = Home::new();
    let file = home.root.path().join("mcp.json");
    fs::write(&file, text).unwrap();
    home.paths = home.paths.clone().with_mcp_json(vec![file.clone()]);
    (home, file)
}

const CLIENT: &str = "{\"mcpServers\": {\"there\": {\"command\": \"sh\"}}}";

#[test]
fn servers_of_a_clients_file_stand_beside_those_of_server_files() {
    let (home, file) = with_client(CLIENT);
    home.server("here.kdl", GOOD);
    assert_eq!((home.told().as_str(), home.names()), ("", vec!["here".into(), "there".into()]));
    let loaded = load(&home.paths, &KeptLimits::any());
    assert_eq!(loaded.server_files, 2);
    assert_eq!(loaded.settings.servers["there"].source.file, file);
    assert_eq!(loaded.broken, Broken::default());

    fs::write(&file, CLIENT.replace("there", "moved")).unwrap();
    assert_eq!(home.names(), ["here", "moved"]);
}

#[test]
fn a_clients_file_that_cannot_be_read_is_an_error_that_names_it() {
    let (home, file) = with_client(CLIENT);
    let told = || (home.told(), load(&home.paths, &KeptLimits::any()));
    fs::remove_file(&file).unwrap();
    assert!(told().0.contains("there is no such file"), "{}", told().0);
    let broken = Broken::AllBut(BTreeSet::new());
    assert_eq!(told().1.broken, broken, "whose servers it had is not known");
    home.server("here.kdl", GOOD);
    let here = ServerName::new("here").unwrap();
    assert!(!told().1.broken.contains(&here), "this one has a file of its own");
    fs::remove_file(home.paths.servers_dir.join("here.kdl")).unwrap();

    fs::create_dir(&file).unwrap();
    assert!(told().0.contains("this is a folder"), "{}", told().0);
    fs::remove_dir(&file).unwrap();

    fs::write(&file, [b'{', 0xff]).unwrap();
    assert!(told().0.contains("line 1 is not UTF-8"), "{}", told().0);

    fs::File::create(&file).unwrap().set_len(MAX_MCP_FILE_BYTES + 1).unwrap();
    assert!(told().0.contains("the file is larger than 16 MiB"), "{}", told().0);
    assert!(!told().1.is_valid());

    // Some clients keep much else in theirs.
    let much = format!("{{\"history\": \"{}\", {}", "x".repeat(3 << 20), &CLIENT[1..]);
    fs::write(&file, much).unwrap();
    assert_eq!((home.told().as_str(), home.names()), ("", vec!["there".into()]));
}

#[test]
fn a_clients_file_needs_no_folder_of_server_files_beside_it() {
    let (home, _) = with_client(CLIENT);
    fs::remove_dir_all(&home.paths.servers_dir).unwrap();
    let loaded = load(&home.paths, &KeptLimits::any());
    assert!(loaded.is_valid() && loaded.settings.servers.contains_key("there"));
    let is_broken = |name: &str| loaded.broken.contains(&ServerName::new(name).unwrap());
    assert!(!is_broken("there") && is_broken("lost-with-the-folder"));
}

#[test]
fn a_clients_file_that_is_named_twice_is_read_once() {
    let (mut home, file) = with_client(CLIENT);
    home.paths = home.paths.clone().with_mcp_json(vec![file.clone(), file]);
    assert_eq!((home.told().as_str(), home.names()), ("", vec!["there".into()]));
}

#[test]
fn a_clients_file_may_be_named_in_the_daemons_own() {
    let (mut home, file) = with_client(CLIENT);
    home.paths = home.paths.clone().with_mcp_json(Vec::new());
    let line = format!("mcp-json \"{0}\" \"{0}\"\n", file.display());
    fs::write(&home.paths.daemon_file, line).unwrap();
    assert_eq!((home.told().as_str(), home.names()), ("", vec!["there".into()]));

    fs::remove_file(&file).unwrap();
    assert!(home.told().contains("after `mcp-json` in `xy.kdl`"), "{}", home.told());
    let loaded = load(&home.paths, &KeptLimits::any());
    assert_eq!(loaded.broken, Broken::AllBut(BTreeSet::new()));

    for (wrong, why) in [
        ("mcp-json", "`mcp-json` names no file"),
        ("mcp-json 7", "must be text in quotes"),
        ("mcp-json \"mcp.json\"", "`mcp-json` must be an absolute path"),
        ("mcp-json \"~/mcp.json\"", "`~` is not expanded here"),
    ] {
        fs::write(&home.paths.daemon_file, wrong).unwrap();
        assert!(home.told().contains(why), "{wrong}: {}", home.told());
    }
}

#[test]
fn a_daemons_own_file_that_cannot_be_read_switches_nothing_off() {
    let home = Home::new();
    let of = |text: &str| {
        fs::write(&home.paths.daemon_file, text).unwrap();
        supervision(&home.paths).unwrap()
    };
    assert_eq!(of("supervisor #true"), Supervision::On);
    assert!(matches!(of("supervisor #false"), Supervision::Off(_)));
    assert_eq!(of("supervisor \"maybe\""), Supervision::On);
    assert_eq!(of("supervisor {"), Supervision::On);
}

#[test]
#[cfg(unix)]
fn a_file_in_a_private_folder_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let file = home.path().join("a.kdl");
    std::fs::write(&file, "").unwrap();
    for (folder, own, expected) in
        [(0o755, 0o644, true), (0o700, 0o644, false), (0o755, 0o600, false)]
    {
        mode(home.path(), folder);
        mode(&file, own);
        assert_eq!(super::others_can_read(&file), expected, "{folder:o} {own:o}");
    }
}
