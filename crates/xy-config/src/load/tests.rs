//! Tests with real folders.

use std::collections::BTreeSet;

use tempfile::TempDir;

use super::*;

/// A temporary home, which is removed with this value.
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

    /// Returns all problems, with the name of the temporary folder removed.
    fn report(&self) -> String {
        let loaded = load(&self.paths, &LimitSupport::any());
        let report: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
        report.join("\n").replace(&self.root.path().display().to_string(), "HOME")
    }

    fn names(&self) -> Vec<String> {
        load(&self.paths, &LimitSupport::any())
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
    assert_eq!((home.report().as_str(), home.names().len()), ("", 0));
    assert_eq!(load(&home.paths, &LimitSupport::any()).files, 0);
    fs::write(&home.paths.daemon_file, "").unwrap();
    assert_eq!(load(&home.paths, &LimitSupport::any()).files, 1);
    fs::remove_dir_all(&home.paths.config_dir).unwrap();
    assert_eq!((home.report().as_str(), home.names().len()), ("", 0));
}

#[test]
fn servers_are_read_by_name() {
    let home = Home::new();
    home.server("b.kdl", GOOD).server("a.kdl", GOOD).server("c.kdl", GOOD);
    assert_eq!(home.names(), ["a", "b", "c"]);
    assert_eq!(load(&home.paths, &LimitSupport::any()).server_files, 3);
}

#[test]
fn file_of_the_daemon_sets_defaults() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    fs::write(&home.paths.daemon_file, "defaults { stop { grace \"3s\" } }").unwrap();
    let loaded = load(&home.paths, &LimitSupport::any());
    assert!(loaded.is_valid());
    assert_eq!(loaded.settings.servers["a"].rules.stop.grace.as_secs(), 3);
}

#[test]
fn other_files_are_ignored() {
    let home = Home::new();
    for name in
        ["a.kdl~", ".a.kdl.swp", ".hidden.kdl", "#a.kdl#", ".#a.kdl", "README.md", "a.kdl.bak"]
    {
        home.server(name, "not { kdl");
    }
    assert_eq!((home.report().as_str(), home.names().len()), ("", 0));
}

#[cfg(unix)]
#[test]
fn unreadable_files_are_reported_with_the_reason() {
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
    insta::assert_snapshot!(home.report());
    assert_eq!(home.names(), ["good"]);
}

#[test]
fn file_of_maximum_size_is_read() {
    let home = Home::new();
    let padding = " ".repeat(1024 * 1024 - GOOD.len());
    home.server("a.kdl", format!("{GOOD}{padding}"));
    assert_eq!(home.names(), ["a"]);
}

#[cfg(unix)]
#[test]
fn servers_folder_that_is_a_file_is_an_error() {
    let home = Home::new();
    fs::remove_dir(&home.paths.servers_dir).unwrap();
    fs::write(&home.paths.servers_dir, "").unwrap();
    let as_file = home.report();
    fs::remove_file(&home.paths.servers_dir).unwrap();
    std::os::unix::fs::symlink("/nowhere", &home.paths.servers_dir).unwrap();
    insta::assert_snapshot!([as_file, home.report()].join("\n"));
}

#[cfg(target_os = "linux")]
#[test]
fn non_unicode_name_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let name = OsStr::from_bytes(b"a\xff.kdl");
    fs::write(home.paths.servers_dir.join(name), GOOD).unwrap();
    assert!(home.report().contains("a server's name has only letters"), "{}", home.report());
}

#[test]
fn too_many_files_are_an_error() {
    let home = Home::new();
    for number in 0..=MAX_SERVER_FILES {
        home.server(&format!("s{number}.kdl"), GOOD);
    }
    assert_eq!(home.names().len(), MAX_SERVER_FILES);
    insta::assert_snapshot!(home.report());
}

#[cfg(unix)]
#[test]
fn programs_are_searched_on_disk() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let program = home.root.path().join("program");
    fs::write(&program, "").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    home.server("a.kdl", format!("command {:?}", program.display().to_string()));
    assert!(home.report().contains("is not executable"), "{}", home.report());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(home.report(), "");
    fs::remove_file(&program).unwrap();
    assert!(home.report().contains("does not exist"), "{}", home.report());
}

#[test]
fn unreadable_profile_shows_nothing() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    let folder = &home.paths.profiles_dir;
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("work.kdl"), "servers \"a\"").unwrap();
    fs::write(folder.join("default.kdl"), [0xff]).unwrap();
    fs::write(folder.join("work.kdl~"), "nonsense {").unwrap();
    let loaded = load(&home.paths, &LimitSupport::any());
    let profiles = &loaded.settings.profiles;
    assert_eq!(profiles.keys().collect::<Vec<_>>(), ["default", "work"]);
    assert_eq!(profiles["work"].servers.len(), 1);
    let closed = crate::profile::ProfileSettings::closed("default", "profiles/default.kdl");
    assert_eq!(*profiles["default"], closed);
    assert!(!loaded.is_valid());
    assert_eq!(loaded.broken, BrokenServers::default(), "no server is the worse for it");
    assert_eq!((loaded.server_files, loaded.files), (1, 3));
}

/// Creates a home with an MCP client's file beside it.
fn with_client(text: &str) -> (Home, PathBuf) {
    let mut home = Home::new();
    let file = home.root.path().join("mcp.json");
    fs::write(&file, text).unwrap();
    home.paths = home.paths.clone().with_mcp_json(vec![file.clone()]);
    (home, file)
}

const CLIENT: &str = "{\"mcpServers\": {\"there\": {\"command\": \"sh\"}}}";

#[test]
fn servers_of_a_client_file_are_added() {
    let (home, file) = with_client(CLIENT);
    home.server("here.kdl", GOOD);
    assert_eq!((home.report().as_str(), home.names()), ("", vec!["here".into(), "there".into()]));
    let loaded = load(&home.paths, &LimitSupport::any());
    assert_eq!(loaded.server_files, 2);
    assert_eq!(loaded.settings.servers["there"].source.file, file);
    assert_eq!(loaded.broken, BrokenServers::default());

    fs::write(&file, CLIENT.replace("there", "moved")).unwrap();
    assert_eq!(home.names(), ["here", "moved"]);
}

#[test]
fn unreadable_client_file_is_an_error() {
    let (home, file) = with_client(CLIENT);
    let report = || (home.report(), load(&home.paths, &LimitSupport::any()));
    fs::remove_file(&file).unwrap();
    assert!(report().0.contains("the file does not exist"), "{}", report().0);
    let broken = BrokenServers::AllExcept(BTreeSet::new());
    assert_eq!(report().1.broken, broken, "its servers are unknown");
    home.server("here.kdl", GOOD);
    let here = ServerName::new("here").unwrap();
    assert!(!report().1.broken.contains(&here), "this one has a file of its own");
    fs::remove_file(home.paths.servers_dir.join("here.kdl")).unwrap();

    fs::create_dir(&file).unwrap();
    assert!(report().0.contains("this is a folder"), "{}", report().0);
    fs::remove_dir(&file).unwrap();

    fs::write(&file, [b'{', 0xff]).unwrap();
    assert!(report().0.contains("line 1 is not UTF-8"), "{}", report().0);

    fs::File::create(&file).unwrap().set_len(MAX_MCP_FILE_BYTES + 1).unwrap();
    assert!(report().0.contains("the file is larger than 16 MiB"), "{}", report().0);
    assert!(!report().1.is_valid());

    // Some clients store much other data in their files.
    let much = format!("{{\"history\": \"{}\", {}", "x".repeat(3 << 20), &CLIENT[1..]);
    fs::write(&file, much).unwrap();
    assert_eq!((home.report().as_str(), home.names()), ("", vec!["there".into()]));
}

#[test]
fn client_file_works_without_a_servers_folder() {
    let (home, _) = with_client(CLIENT);
    fs::remove_dir_all(&home.paths.servers_dir).unwrap();
    let loaded = load(&home.paths, &LimitSupport::any());
    assert!(loaded.is_valid() && loaded.settings.servers.contains_key("there"));
    let is_broken = |name: &str| loaded.broken.contains(&ServerName::new(name).unwrap());
    assert!(!is_broken("there") && is_broken("lost-with-the-folder"));
}

#[test]
fn client_file_named_twice_is_read_once() {
    let (mut home, file) = with_client(CLIENT);
    home.paths = home.paths.clone().with_mcp_json(vec![file.clone(), file]);
    assert_eq!((home.report().as_str(), home.names()), ("", vec!["there".into()]));
}

#[test]
fn client_file_may_be_named_in_the_daemon_file() {
    let (mut home, file) = with_client(CLIENT);
    home.paths = home.paths.clone().with_mcp_json(Vec::new());
    let line = format!("mcp-json \"{0}\" \"{0}\"\n", file.display());
    fs::write(&home.paths.daemon_file, line).unwrap();
    assert_eq!((home.report().as_str(), home.names()), ("", vec!["there".into()]));

    fs::remove_file(&file).unwrap();
    assert!(home.report().contains("after `mcp-json` in `xy.kdl`"), "{}", home.report());
    let loaded = load(&home.paths, &LimitSupport::any());
    assert_eq!(loaded.broken, BrokenServers::AllExcept(BTreeSet::new()));

    for (wrong, why) in [
        ("mcp-json", "`mcp-json` names no file"),
        ("mcp-json 7", "must be text in quotes"),
        ("mcp-json \"mcp.json\"", "`mcp-json` must be an absolute path"),
        ("mcp-json \"~/mcp.json\"", "`~` is not expanded here"),
    ] {
        fs::write(&home.paths.daemon_file, wrong).unwrap();
        assert!(home.report().contains(why), "{wrong}: {}", home.report());
    }
}

#[test]
fn unreadable_daemon_file_disables_nothing() {
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

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn file_that_others_may_write_is_not_used() {
    let home = Home::new();
    home.server("bad.kdl", GOOD).server("good.kdl", GOOD);
    let file = home.paths.servers_dir.join("bad.kdl");
    for mode in [0o666, 0o602] {
        set_mode(&file, mode);
        insta::allow_duplicates! {
            insta::assert_snapshot!(home.report(), @"
            error: not used: everyone may write `HOME/.config/xy/servers/bad.kdl`
             --> servers/bad.kdl
              = hint: run `chmod go-w HOME/.config/xy/servers/bad.kdl`
            ");
        }
        assert_eq!(home.names(), ["good"]);
    }
    let loaded = load(&home.paths, &LimitSupport::any());
    let broken = BTreeSet::from([ServerName::new("bad").unwrap()]);
    assert_eq!(loaded.broken, BrokenServers::Only(broken));
    set_mode(&file, 0o644);
    assert_eq!((home.report().as_str(), home.names().len()), ("", 2));
}

#[test]
fn folder_that_others_may_write_is_reported_once() {
    let home = Home::new();
    home.server("a.kdl", GOOD).server("b.kdl", GOOD);
    fs::write(&home.paths.daemon_file, "").unwrap();
    let config_home = home.paths.config_dir.parent().unwrap();
    for folder in [config_home, &home.paths.config_dir, &home.paths.servers_dir] {
        set_mode(folder, 0o777);
        let loaded = load(&home.paths, &LimitSupport::any());
        let report = home.report();
        assert_eq!(loaded.problems.len(), 1, "{report}");
        let real = folder.display().to_string();
        let remedy =
            format!("chmod go-w {real}").replace(home.root.path().to_str().unwrap(), "HOME");
        assert!(report.contains(&remedy), "{report}");
        assert!(loaded.broken.contains(&ServerName::new("a").unwrap()), "{report}");
        assert_eq!(home.names().len(), 0, "{report}");
        set_mode(folder, 0o755);
    }
    assert_eq!((home.report().as_str(), home.names().len()), ("", 2));
}

#[test]
fn profile_that_others_may_write_shows_nothing() {
    let home = Home::new();
    fs::create_dir(&home.paths.profiles_dir).unwrap();
    let file = home.paths.profiles_dir.join("work.kdl");
    fs::write(&file, "servers \"one\"\n").unwrap();
    set_mode(&file, 0o666);
    let loaded = load(&home.paths, &LimitSupport::any());
    assert!(!loaded.is_valid());
    let closed = ProfileSettings::closed("work", "profiles/work.kdl");
    assert_eq!(*loaded.settings.profiles["work"], closed);
}

#[test]
fn link_is_followed_and_its_target_checked() {
    let home = Home::new();
    let elsewhere = home.root.path().join("dotfiles");
    fs::create_dir(&elsewhere).unwrap();
    let target = elsewhere.join("a.kdl");
    fs::write(&target, GOOD).unwrap();
    std::os::unix::fs::symlink(&target, home.paths.servers_dir.join("a.kdl")).unwrap();
    assert_eq!((home.report().as_str(), home.names().len()), ("", 1));
    for path in [&target, &elsewhere] {
        set_mode(path, 0o777);
        assert!(home.report().contains("everyone may write"), "{}", home.report());
        assert!(home.names().is_empty());
        set_mode(path, 0o755);
    }
    set_mode(&elsewhere, 0o1777); // As `/nix/store`, where users cannot replace others' files.
    assert_eq!(home.names(), ["a"]);
}

#[test]
fn client_file_that_others_may_write_is_not_used() {
    let home = Home::new();
    let file = home.root.path().join("mcp.json");
    fs::write(&file, r#"{"mcpServers":{"a":{"command":"sh"}}}"#).unwrap();
    let paths = home.paths.clone().with_mcp_json(vec![file.clone()]);
    assert_eq!(load(&paths, &LimitSupport::any()).settings.servers.len(), 1);
    set_mode(&file, 0o666);
    let loaded = load(&paths, &LimitSupport::any());
    assert_eq!(loaded.settings.servers.len(), 0);
    assert!(matches!(loaded.broken, BrokenServers::AllExcept(_)), "{:?}", loaded.broken);
}

/// Loads the home with the last good texts and running servers of an earlier daemon.
fn after(home: &Home, last_good: &[(&str, &str)], living: &[&str]) -> LoadedConfig {
    let last_good = last_good.iter().map(|&(file, text)| (file.to_owned(), text.to_owned()));
    let living = living.iter().map(|name| ServerName::new(name).unwrap());
    let earlier = PriorState { last_good: last_good.collect(), living: living.collect() };
    load_with(&home.paths, &LimitSupport::any(), &earlier)
}

#[test]
fn bad_daemon_file_is_replaced_by_its_last_good_text() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    fs::write(&home.paths.daemon_file, "defaults {").unwrap();
    let good = "defaults { stop { grace \"3s\" } }";
    let loaded = after(&home, &[("xy.kdl", good)], &[]);
    assert_eq!(loaded.settings.servers["a"].rules.stop.grace.as_secs(), 3);
    assert_eq!(loaded.broken, BrokenServers::default());
    assert_eq!(loaded.bad.texts["xy.kdl"], good);
    assert!(!loaded.is_valid() && loaded.problems.iter().all(|it| loaded.bad.is_contained(it)));
    let report: Vec<&str> = loaded.problems.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(report.last(), Some(&"a daemon uses the last good version of this file"));

    // A last good text that the rules no longer allow is ignored without a report.
    let loaded = after(&home, &[("xy.kdl", "nonsense 1")], &[]);
    assert_eq!(loaded.broken, BrokenServers::All);
    assert!(loaded.bad.texts.is_empty() && loaded.bad.replaced.is_empty());
    assert!(!loaded.problems.iter().any(|it| it.message.contains("nonsense")));
}

#[test]
fn bad_profile_is_replaced_by_its_last_good_text_or_closed() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    fs::create_dir(&home.paths.profiles_dir).unwrap();
    fs::write(home.paths.profiles_dir.join("p.kdl"), b"servers \"\xe9\"").unwrap();
    let loaded = after(&home, &[("profiles/p.kdl", "servers \"a\"")], &[]);
    assert_eq!(loaded.settings.profiles["p"].servers.len(), 1);
    assert!(loaded.problems.iter().all(|it| loaded.bad.is_contained(it)));
    assert_eq!(loaded.bad.texts["profiles/p.kdl"], "servers \"a\"");

    let loaded = after(&home, &[], &[]);
    let closed = ProfileSettings::closed("p", "profiles/p.kdl");
    assert_eq!(*loaded.settings.profiles["p"], closed);
    assert!(loaded.problems.iter().any(|it| it.is_error() && !loaded.bad.is_contained(it)));
}

#[test]
fn files_removed_by_others_keep_their_last_good_texts() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    fs::create_dir(&home.paths.profiles_dir).unwrap();
    let good = [("xy.kdl", "strict #true"), ("profiles/default.kdl", "servers \"a\"")];
    let loaded = after(&home, &good, &[]);
    assert_eq!((loaded.settings.strict, loaded.settings.profiles.len()), (None, 0), "removed");
    set_mode(&home.paths.config_dir, 0o777);
    let loaded = after(&home, &good, &[]);
    assert_eq!(loaded.settings.strict, Some(true));
    assert_eq!(loaded.settings.profiles["default"].servers.len(), 1);
    assert!(loaded.problems.iter().all(|it| loaded.bad.is_contained(it)), "{:?}", loaded.problems);
    // A profile that another user may have written shows nothing.
    fs::write(home.paths.profiles_dir.join("new.kdl"), "servers \"a\"").unwrap();
    let loaded = after(&home, &good, &[]);
    let closed = ProfileSettings::closed("new", "profiles/new.kdl");
    assert_eq!(*loaded.settings.profiles["new"], closed);
    assert!(loaded.problems.iter().any(|it| it.is_error() && !loaded.bad.is_contained(it)));
}

#[test]
fn living_server_keeps_its_port() {
    let home = Home::new();
    let with_port = "command \"sh\"; port 8421";
    home.server("a.kdl", with_port).server("b.kdl", with_port);
    let loaded = |living: &[&str]| {
        let loaded = after(&home, &[], living);
        let used: Vec<_> = loaded.settings.servers.keys().map(ToString::to_string).collect();
        let bad: Vec<_> = loaded.bad.servers.keys().map(ToString::to_string).collect();
        (used.concat(), bad.concat())
    };
    assert_eq!(loaded(&[]), ("a".into(), "b".into()));
    assert_eq!(loaded(&["b"]), ("b".into(), "a".into()));
    // A running server whose file names another port does not claim this one.
    home.server("b.kdl", "command \"sh\"; port 8422").server("c.kdl", with_port);
    assert_eq!(loaded(&["b"]), ("ab".into(), "c".into()));
}

#[test]
fn errors_of_one_server_affect_no_other() {
    let home = Home::new();
    home.server("a.kdl", GOOD).server("b.kdl", "comand \"sh\"").server("bad name.kdl", GOOD);
    let loaded = after(&home, &[], &[]);
    assert!(loaded.problems.iter().all(|it| loaded.bad.is_contained(it)));
    let bad: Vec<_> = loaded.bad.servers.iter().collect();
    let name = ServerName::new("b").unwrap();
    assert_eq!(bad, [(&name, &home.paths.servers_dir.join("b.kdl"))]);
    fs::write(&home.paths.daemon_file, "comand 1").unwrap();
    let loaded = after(&home, &[], &[]);
    assert!(loaded.problems.iter().any(|it| !loaded.bad.is_contained(it)));
}

#[test]
#[cfg(unix)]
fn file_in_a_private_folder_is_private() {
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

#[test]
fn unreadable_profiles_folder_hides_everything() {
    let home = Home::new();
    home.server("a.kdl", GOOD);
    assert!(load(&home.paths, &LimitSupport::any()).settings.profiles.is_empty());
    fs::write(&home.paths.profiles_dir, "not a folder").unwrap();
    let loaded = load(&home.paths, &LimitSupport::any());
    assert!(!loaded.is_valid());
    let closed = ProfileSettings::closed("default", "profiles");
    assert_eq!(*loaded.settings.profiles["default"], closed);
}
