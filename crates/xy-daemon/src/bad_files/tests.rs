//! Tests with real files in a temporary home.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use xy_config::{LastGood, LimitSupport, PriorState};

use super::*;

const GOOD: &str = "command \"sh\"";
const BAD: &str = "comand \"sh\"";

struct Home {
    _root: TempDir,
    paths: Paths,
}

impl Home {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::resolve(root.path(), |_| None).unwrap();
        std::fs::create_dir_all(&paths.servers_dir).unwrap();
        std::fs::create_dir_all(&paths.profiles_dir).unwrap();
        for (file, text) in files {
            std::fs::write(paths.config_dir.join(file), text).unwrap();
        }
        Self { _root: root, paths }
    }

    fn load(&self, last_good: &[(&str, &str)]) -> LoadedConfig {
        let owned = |&(file, text): &(&str, &str)| (file.to_owned(), text.to_owned());
        let last_good: LastGood = last_good.iter().map(owned).collect();
        let earlier = PriorState { last_good, ..PriorState::default() };
        xy_config::load_with(&self.paths, &LimitSupport::any(), &earlier)
    }

    fn sorted(&self, kept: &ServerMap) -> (ServerMap, Faults) {
        sort(&self.load(&[]), kept, &self.paths)
    }
}

fn names<T>(map: &BTreeMap<ServerName, T>) -> Vec<&str> {
    map.keys().map(ServerName::as_str).collect()
}

#[test]
fn start_is_decided_by_flag_file_and_default() {
    let watched = |flag| Strictness { flag, is_foreground: true };
    let unwatched = |flag| Strictness { flag, is_foreground: false };
    let bad = |own: &str| Home::new(&[("xy.kdl", own), ("servers/b.kdl", BAD)]).load(&[]);
    let (unsaid, strict, lenient) = (bad(""), bad("strict #true"), bad("strict #false"));
    let table = [
        (watched(None), &unsaid, false),
        (unwatched(None), &unsaid, true),
        (watched(None), &lenient, true),
        (unwatched(None), &strict, false),
        (watched(Some(false)), &strict, true),
        (unwatched(Some(true)), &lenient, false),
    ];
    for (by, loaded, starts) in table {
        assert_eq!(may_start(by, loaded, false), starts, "{by:?} {:?}", loaded.settings.strict);
        assert!(may_start(by, loaded, true), "living servers are never left alone");
    }
    assert!(may_start(watched(None), &Home::new(&[("servers/a.kdl", GOOD)]).load(&[]), false));
}

#[test]
fn files_for_all_servers_are_fatal_without_a_last_good_version() {
    let lenient = Strictness { flag: Some(false), is_foreground: false };
    let strict = Strictness { flag: Some(true), is_foreground: false };
    for file in ["xy.kdl", "profiles/p.kdl"] {
        let home = Home::new(&[(file, "nonsense 1"), ("servers/a.kdl", GOOD)]);
        assert!(!may_start(lenient, &home.load(&[]), false), "{file}");
        assert!(may_start(lenient, &home.load(&[(file, "")]), false), "{file}");
        assert!(!may_start(strict, &home.load(&[(file, "")]), false), "{file}");
        let (_, faults) = sort(&home.load(&[(file, "")]), &ServerMap::new(), &home.paths);
        assert_eq!(faults.has_old_settings, file == "xy.kdl");
        let expected = "cannot be used, so its last good version is in use: see `xy check`";
        assert_eq!(faults.warnings, [format!("`{file}` {expected}")]);
    }
}

#[test]
fn writable_folder_fails_its_servers_but_not_the_daemon() {
    let lenient = Strictness { flag: None, is_foreground: false };
    let strict = Strictness { flag: Some(true), is_foreground: false };
    let good = [("xy.kdl", "strict #false"), ("profiles/p.kdl", "servers \"a\"")];
    let home = Home::new(&[good[0], good[1], ("servers/a.kdl", GOOD)]);
    let config_home = home.paths.config_dir.parent().unwrap().to_owned();
    for (folder, needs_last_good) in [
        (home.paths.servers_dir.clone(), false),
        (home.paths.profiles_dir.clone(), true),
        (home.paths.config_dir.clone(), true),
        (config_home, true),
    ] {
        let shown = folder.display();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let loaded = home.load(&good);
        assert!(may_start(lenient, &loaded, false), "{shown}: {:?}", loaded.problems);
        assert!(!may_start(strict, &loaded, false), "{shown}");
        assert_eq!(may_start(lenient, &home.load(&[]), false), !needs_last_good, "{shown}");
        assert_eq!(loaded.settings.strict, Some(false), "{shown}");
        assert!(loaded.settings.profiles["p"].deny_servers.is_empty(), "{shown}");
        let (servers, faults) = sort(&loaded, &ServerMap::new(), &home.paths);
        if folder == home.paths.profiles_dir {
            assert_eq!(names(&servers), ["a"]);
        } else {
            assert_eq!((names(&servers), names(&faults.servers)), (vec![], vec!["a"]), "{shown}");
            let bad = &faults.servers["a"];
            assert!(bad.reason.contains(&format!("everyone may write `{shown}`")), "{bad:?}");
            let hint = format!("run `chmod go-w {shown}`, then run `xy reload`");
            assert_eq!(bad.hint(), hint);
            assert_eq!(bad.problems.len(), 1, "{bad:?}");
            let living = home_settings(&home, &folder);
            let (servers, faults) = sort(&loaded, &living, &home.paths);
            assert_eq!((names(&servers), faults.servers.len()), (vec!["a"], 0), "{shown}");
        }
        assert!(may_reload(&loaded, &faults), "{shown}: it was so before");
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    }
}

/// Returns the settings of the servers as long as no other user may write `folder`.
fn home_settings(home: &Home, folder: &Path) -> ServerMap {
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    home.load(&[]).settings.servers
}

#[test]
fn reload_accepts_only_files_that_were_already_bad() {
    let home = Home::new(&[("servers/a.kdl", GOOD), ("servers/b.kdl", BAD)]);
    let loaded = home.load(&[]);
    assert!(!may_reload(&loaded, &Faults::default()));
    let (_, before) = sort(&loaded, &ServerMap::new(), &home.paths);
    assert!(may_reload(&loaded, &before));
    let home = Home::new(&[("servers/b.kdl", "port 0"), ("servers/c.kdl", BAD)]);
    assert!(!may_reload(&home.load(&[]), &before));
    let home = Home::new(&[("servers/b.kdl", BAD), ("xy.kdl", "nonsense 1")]);
    assert!(!may_reload(&home.load(&[]), &before));
    assert!(!may_reload(&home.load(&[("xy.kdl", "")]), &before), "it was good before");
    let (_, before) = sort(&home.load(&[("xy.kdl", "")]), &ServerMap::new(), &home.paths);
    assert!(may_reload(&home.load(&[("xy.kdl", "")]), &before));
    assert!(!may_reload(&home.load(&[]), &before), "the last good version is lost");
}

#[test]
fn file_that_was_corrected_is_not_known_as_bad() {
    let home = Home::new(&[("servers/b.kdl", BAD), ("servers/c.kdl", BAD)]);
    let loaded = home.load(&[]);
    let (_, mut before) = sort(&loaded, &ServerMap::new(), &home.paths);
    before.forget(&ServerName::new("b").unwrap(), "servers/b.kdl");
    assert_eq!(names(&before.servers), ["c"]);
    assert!(!may_reload(&loaded, &before), "it has become bad once more");
}

#[test]
fn server_of_a_bad_file_has_failed_with_a_short_reason() {
    let home = Home::new(&[
        ("servers/a.kdl", GOOD),
        ("servers/b.kdl", "comand \"sh\"\nport 0\n"),
        ("servers/bad name.kdl", GOOD),
    ]);
    let (servers, faults) = home.sorted(&ServerMap::new());
    assert_eq!((names(&servers), names(&faults.servers)), (vec!["a"], vec!["b"]));
    let bad = faults.servers.values().next().unwrap();
    insta::assert_snapshot!(bad.reason, @"its file cannot be used: servers/b.kdl:1: unknown field `comand` (and 2 more errors)");
    insta::assert_snapshot!(bad.hint(), @"fix `servers/b.kdl`, test it with `xy check`, then run `xy reload`");
    let has_suggestion = |it: &Problem| it.rendered.contains("did you mean `command`?");
    assert!(bad.problems.iter().any(has_suggestion), "{:?}", bad.problems);
    insta::assert_snapshot!(faults.warnings.join("\n"), @"`servers/bad name.kdl` is not used: a server's name has only letters, digits, `-` and `_`, not ' ': see `xy check`");
}

#[test]
fn reason_and_report_are_bounded() {
    let variables = (0..90).map(|it| format!("A{it} 1 2;")).collect::<Vec<_>>().join(" ");
    let many = format!("\"{}\" 1\nenv {{ {variables}}}\n", "y".repeat(5000));
    let home = Home::new(&[("servers/b.kdl", &many)]);
    let (_, faults) = home.sorted(&ServerMap::new());
    let bad = faults.servers.values().next().unwrap();
    assert_eq!(bad.problems.len(), MAX_PROBLEMS);
    assert!(bad.reason.chars().count() < MAX_REASON + 100, "{}", bad.reason);
}

#[test]
fn living_server_keeps_its_settings_and_its_port() {
    let before = Home::new(&[("servers/b.kdl", "command \"sh\"; port 8421")]).load(&[]);
    let kept = before.settings.servers;
    let home = Home::new(&[
        ("servers/a.kdl", "command \"sh\"; port 8421"),
        ("servers/b.kdl", BAD),
        ("servers/c.kdl", GOOD),
    ]);
    let (servers, faults) = home.sorted(&kept);
    assert_eq!((names(&servers), names(&faults.servers)), (vec!["b", "c"], vec!["a"]));
    assert!(servers["b"].source.is_outdated && !servers["c"].source.is_outdated);
    let reason = &faults.servers.values().next().unwrap().reason;
    assert!(reason.contains("port 8421 is already used by `b`"), "{reason}");
}

#[test]
fn other_living_server_keeps_the_port_that_a_file_claims() {
    let file = "command \"sh\"; port 8421";
    let living = Home::new(&[("servers/a.kdl", file)]).load(&[]).settings.servers;
    let claiming = |name: &str| {
        let loaded = Home::new(&[(&format!("servers/{name}.kdl"), file)]).load(&[]);
        loaded.settings.servers[name].clone()
    };
    let refused = port_conflict(&claiming("b"), &living).unwrap();
    assert_eq!(refused.kind, ErrorKind::PortConflict);
    insta::assert_snapshot!(refused.message, @"server `b` was not reloaded");
    insta::assert_snapshot!(refused.cause.unwrap(), @"port 8421 is already used by `a`");
    insta::assert_snapshot!(refused.hint.unwrap(), @"give one of them another port, then run `xy reload`");
    assert!(port_conflict(&claiming("a"), &living).is_none(), "it is its own");
    let without = Home::new(&[("servers/b.kdl", GOOD)]).load(&[]).settings.servers;
    assert!(port_conflict(&without["b"], &without).is_none());
}

#[test]
fn without_settings_for_all_no_server_starts() {
    let home = Home::new(&[("xy.kdl", "nonsense 1"), ("servers/a.kdl", GOOD)]);
    let (servers, faults) = home.sorted(&ServerMap::new());
    assert_eq!((names(&servers), names(&faults.servers)), (vec![], vec!["a"]));
    assert!(faults.servers.values().next().unwrap().reason.contains("xy.kdl:1"));
}
