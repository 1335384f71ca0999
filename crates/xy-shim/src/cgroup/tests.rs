//! Folders that look like groups, and real groups where they can be had.

use std::fs;

use tempfile::TempDir;

use super::*;

/// A folder with the files of a group, as somebody has written them.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn a_group_of_cgroup2_limits_others_only_if_it_is_free_to_do_so() {
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
    let told = [
        can(&[CONTROLLERS, NOTHING, TYPE, ("cgroup.procs", "7\n")]),
        can(&[CONTROLLERS, NOTHING, TYPE, ("cgroup.procs", "0\n")]),
        can(&[("cgroup.controllers", "cpu\n"), NOTHING, TYPE]),
        can(&[CONTROLLERS, TYPE]),
    ];
    insta::assert_snapshot!(told.map(Result::unwrap_err).join("\n"), @"
    the daemon needs a cgroup of its own, as from `systemd-run --user -p Delegate=yes`
    the daemon needs a cgroup of its own, as from `systemd-run --user -p Delegate=yes`
    the cgroup `FOLDER` has no `pids` controller
    the cgroup `FOLDER` cannot be changed by this user
    ");
}

#[test]
fn a_machine_without_groups_limits_memory_per_process_and_processes_not_at_all() {
    let why = keeper(&Places::default(), Controller::Pids).unwrap_err();
    if cfg!(target_os = "linux") {
        assert_eq!(why, "there is no cgroup with the `pids` controller");
        assert_ne!(kept().memory, Kept::NotAtAll { why }, "on Linux there is always a way");
    }
}

/// Groups of our own making, below our own; none where that is not allowed.
#[cfg(target_os = "linux")]
mod real {
    use std::process::{Child, Command};

    use super::super::life::pause;
    use super::*;

    /// A new group in every place that allows one.
    fn groups(name: &str) -> Vec<Group> {
        let name = format!("xy-test-{name}-{}", std::process::id());
        let places = Places::here().all();
        let made: Vec<Group> =
            places.iter().filter_map(|place| Group::make(place, &name).ok()).collect();
        if made.is_empty() {
            println!("SKIPPED: no group can be made here");
        }
        made
    }

    fn sleeper_in(group: &Group) -> Child {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        group.set("cgroup.procs", &child.id().to_string()).unwrap();
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
    fn a_group_kills_what_is_in_it_and_below_it_and_only_then_can_be_removed() {
        for group in groups("kill") {
            let below = Group::make(&group.folder, "below").unwrap();
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
    fn whoever_is_alone_in_a_group_is_seen_as_such() {
        for group in groups("alone") {
            assert!(group.is_vacant());
            let mut child = sleeper_in(&group);
            assert!(!group.is_vacant() && group.has_only(child.id()) && !group.has_only(1));
            child.kill().unwrap();
            child.wait().unwrap();
            remove(&group);
        }
    }

    #[test]
    fn what_is_not_ours_is_never_stale() {
        for group in groups("name") {
            end_stale();
            remove_stale();
            assert!(group.folder.exists());
            remove(&group);
        }
    }
}
