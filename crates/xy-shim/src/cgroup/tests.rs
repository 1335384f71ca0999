//! Tests with directories that look like groups, and with real groups where they can be created.

use std::fs;

use tempfile::TempDir;

use super::*;

/// Creates a directory with the files of a group.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn cgroup2_group_limits_others_only_if_it_can() {
    const CONTROLLERS: (&str, &str) = ("cgroup.controllers", "cpu memory pids\n");
    const NOTHING: (&str, &str) = ("cgroup.subtree_control", "\n");
    const TYPE: (&str, &str) = ("cgroup.type", "domain\n");
    let can = |files: &[(&str, &str)]| {
        let folder = folder(files);
        let shown = folder.path().display().to_string();
        check_unified(folder.path(), "pids").map_err(|why| why.replace(&shown, "FOLDER"))
    };
    let handed_down = ("cgroup.subtree_control", "memory pids\n");
    assert_eq!(can(&[CONTROLLERS, handed_down, TYPE, ("cgroup.procs", "")]), Ok(()));
    assert_eq!(can(&[CONTROLLERS, NOTHING, TYPE, ("cgroup.procs", "")]), Ok(()));
    assert_eq!(can(&[CONTROLLERS, NOTHING, ("cgroup.procs", "1\n2\n")]), Ok(()), "the root");
    let errors = [
        can(&[CONTROLLERS, NOTHING, TYPE, ("cgroup.procs", "7\n")]),
        can(&[CONTROLLERS, NOTHING, TYPE, ("cgroup.procs", "0\n")]),
        can(&[("cgroup.controllers", "cpu\n"), NOTHING, TYPE]),
        can(&[CONTROLLERS, TYPE]),
    ];
    insta::assert_snapshot!(errors.map(Result::unwrap_err).join("\n"), @"
    the daemon needs a cgroup of its own, as from `systemd-run --user -p Delegate=yes`
    the daemon needs a cgroup of its own, as from `systemd-run --user -p Delegate=yes`
    the cgroup `FOLDER` has no `pids` controller
    this user cannot change the cgroup `FOLDER`
    ");
}

#[test]
fn without_groups_only_memory_is_limited() {
    let why = parent_group(&Hierarchies::default(), Controller::Pids).unwrap_err();
    if cfg!(target_os = "linux") {
        assert_eq!(why, "there is no cgroup with the `pids` controller");
        assert_ne!(
            limit_support().memory,
            Enforcement::Unavailable { why },
            "on Linux there is always a way"
        );
    }
}

/// Real groups, created below this process's own where that is allowed.
#[cfg(target_os = "linux")]
mod real {
    use std::process::{Child, Command};

    use super::super::groups::pause;
    use super::*;

    /// Creates a group in every hierarchy that allows it.
    fn groups(name: &str) -> Vec<Group> {
        let name = format!("xy-test-{name}-{}", std::process::id());
        let hierarchies = Hierarchies::of_current_process().all();
        let made: Vec<Group> =
            hierarchies.iter().filter_map(|parent| Group::create(parent, &name).ok()).collect();
        if made.is_empty() {
            println!("SKIPPED: no group can be made here");
        }
        made
    }

    fn sleeper_in(group: &Group) -> Child {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        group.write("cgroup.procs", &child.id().to_string()).unwrap();
        child
    }

    fn remove(group: &Group) {
        for _ in 0..1000 {
            if group.remove().is_ok() {
                return;
            }
            pause(std::time::Duration::from_millis(5));
        }
        panic!("{group:?} cannot be removed");
    }

    #[test]
    fn group_kills_its_processes_before_removal() {
        for group in groups("kill") {
            let below = Group::create(&group.folder, "below").unwrap();
            let mut children = [sleeper_in(&group), sleeper_in(&below)];
            assert_eq!(group.alive().len(), 2);
            assert!(group.remove().is_err());
            assert!(below.folder.exists());
            group.kill();
            for child in &mut children {
                assert!(!child.wait().unwrap().success());
            }
            assert_eq!(group.alive(), []);
            remove(&group);
            assert!(!group.folder.exists());
        }
    }

    #[test]
    fn single_process_in_a_group_is_recognised() {
        for group in groups("alone") {
            assert!(group.is_empty());
            let mut child = sleeper_in(&group);
            assert!(!group.is_empty() && group.has_only(child.id()) && !group.has_only(1));
            child.kill().unwrap();
            child.wait().unwrap();
            remove(&group);
        }
    }

    #[test]
    fn group_of_another_program_is_never_stale() {
        for group in groups("name") {
            kill_stale();
            remove_stale();
            assert!(group.folder.exists());
            remove(&group);
        }
    }
}
