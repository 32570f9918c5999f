//! A mount by a user without privilege, through `fusermount3`.

use crate::skip;
use crate::support::command::{Background, Finished, has_program, run};
use crate::support::kernel::mount_at_of;
use crate::support::{Scratch, copperfs, is_root, program_for_all};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A user that owns only the files of this test: `nobody`, because `fusermount3` needs a name.
const USER: u32 = 65_534;

/// A user's own place: mount point, runtime directory, a copy of the program, and a mount namespace in
/// which users may open `/dev/fuse`, as on most machines, whatever this one says.
struct Account {
    home: Scratch,
    program: PathBuf,
    point: PathBuf,
    /// Keeps the mount namespace.
    holder: Background,
}

impl Account {
    /// `Err`: why this machine cannot have one.
    fn new() -> Result<Self, &'static str> {
        const ENTER: &str = "mknod \"$1\" c 10 229 && chmod 666 \"$1\" &&
            mount --bind \"$1\" /dev/fuse && true < /dev/fuse && echo ready && exec sleep 600";
        if !is_root() {
            return Err("needs root to become another user");
        }
        if !has_program("fusermount3") {
            return Err("fusermount3 is not installed");
        }
        let home = Scratch::new();
        let program = program_for_all(&home);
        let point = home.dir("mnt");
        for dir in [&point, &home.dir("run")] {
            chown(dir, Some(USER), Some(USER)).unwrap();
        }
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            ENTER,
            "sh",
        ]);
        unshare
            .arg(home.path().join("fuse"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut holder = Background::spawn(&mut unshare);
        let mut said = String::new();
        BufReader::new(holder.stdout())
            .read_line(&mut said)
            .unwrap();
        if said != "ready\n" {
            return Err("no mount namespace with a device of its own can be made here");
        }
        Ok(Self {
            home,
            program,
            point,
            holder,
        })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args([
            "--mount",
            "--target",
            &self.holder.pid().as_raw_nonzero().to_string(),
        ]);
        command.args([
            "setpriv",
            &format!("--reuid={USER}"),
            &format!("--regid={USER}"),
        ]);
        command
            .args(["--clear-groups", "--inh-caps=-all"])
            .arg(program)
            .current_dir("/");
        command
            .env("XDG_RUNTIME_DIR", self.home.path().join("run"))
            .env("HOME", self.home.path());
        command
    }

    fn copperfs(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.program);
        for (name, value) in copperfs(arguments).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(arguments);
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        run(self.command(Path::new(program)).args(arguments))
    }

    /// Options and type of the mount, in the namespace.
    fn mounted(&self) -> Option<(String, String)> {
        mount_at_of(self.holder.pid(), &self.point)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.mounted().is_some() {
            let unmounted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(self.copperfs(&["unmount", "--force"]).arg(&self.point))
            }));
            if !unmounted.is_ok_and(|finished| finished.status.success()) {
                eprintln!("a daemon of user {USER} may be left behind");
            }
        }
    }
}

/// Without an origin, an ordinary user sees the whole file system under the mount, except the parts that belong to this
/// node alone, with the user's own rights.
#[test]
fn an_ordinary_user_mounts_the_whole_file_system() {
    let account = match Account::new() {
        Ok(account) => account,
        Err(reason) => skip!("{reason}"),
    };
    let mounted = run(account.copperfs(&["mount"]).arg(&account.point));
    assert!(mounted.status.success(), "{mounted:?}");
    let (options, kind) = account.mounted().expect("a mount");
    assert_eq!(kind, "fuse.copperfs");
    for wanted in ["ro", "nosuid", "nodev"] {
        assert!(
            options.split(',').any(|option| option == wanted),
            "{options}"
        );
    }
    let inside = |path: &str| account.point.join(path).display().to_string();
    let passwd = account.run("cat", &[&inside("etc/passwd")]);
    assert_eq!(
        passwd.text(),
        fs::read_to_string("/etc/passwd").unwrap(),
        "{passwd:?}"
    );
    let shadow = account.run("cat", &[&inside("etc/shadow")]);
    assert!(shadow.refused().contains("Permission denied"), "{shadow:?}");
    let top = account.run("ls", &["-a", &account.point.display().to_string()]);
    let names: Vec<String> = top.text().lines().map(ToOwned::to_owned).collect();
    assert!(
        names.contains(&"usr".into()) && names.contains(&"etc".into()),
        "{names:?}"
    );
    for excluded in ["proc", "sys", "dev", "run", "tmp", "var"] {
        assert!(
            !names.contains(&excluded.into()),
            "{excluded} is in {names:?}"
        );
        let found = account.run("cat", &[&inside(excluded)]);
        assert!(found.refused().contains("No such file"), "{found:?}");
    }
    let program = account.run(&inside("usr/bin/true"), &[]);
    assert!(program.status.success(), "{program:?}");
    // The only mount of a user needs no name.
    let ask = |arguments: &[&str]| {
        let asked = run(&mut account.copperfs(arguments));
        assert!(asked.status.success(), "{asked:?}");
        asked.text()
    };
    let point = account.point.display().to_string();
    assert!(ask(&["stats"]).contains("pid "));
    assert!(ask(&["list"]).contains(&point));
    assert!(ask(&["config", "show"]).contains(&point));
    assert!(ask(&["logs"]).contains("the mount answers"));
    // Nobody else, not even root, looks into a mount that is not shared.
    let seen = format!(
        "/proc/{}/root{}",
        account.holder.pid().as_raw_nonzero(),
        account.point.display()
    );
    assert!(fs::read_dir(seen).is_err());
    let cleared = run(account
        .copperfs(&["clear", "--everything"])
        .arg(&account.point));
    assert!(cleared.status.success(), "{cleared:?}");
    let unmounted = run(account.copperfs(&["unmount"]).arg(&account.point));
    assert!(unmounted.status.success(), "{unmounted:?}");
    assert!(account.mounted().is_none());
}

/// A stale mount of the user's killed daemon is cleaned by the user's next mount.
#[test]
fn an_ordinary_user_cleans_up_after_a_killed_daemon() {
    let account = match Account::new() {
        Ok(account) => account,
        Err(reason) => skip!("{reason}"),
    };
    for _ in 0..2 {
        let mounted = run(account
            .copperfs(&["mount", "--takeover=false", "--origin", "/usr"])
            .arg(&account.point));
        assert!(mounted.status.success(), "{mounted:?}");
        let said = mounted.text();
        let pid = said
            .split_once("(pid ")
            .unwrap()
            .1
            .split_once(',')
            .unwrap()
            .0;
        let file = account.point.join("usr/bin/env").display().to_string();
        assert!(account.run("cat", &[&file]).status.success());
        assert!(account.run("kill", &["-9", pid]).status.success());
    }
    let unmounted = run(account.copperfs(&["unmount"]).arg(&account.point));
    assert!(unmounted.status.success(), "{unmounted:?}");
    assert!(account.mounted().is_none());
}

/// What an ordinary user may not do is said in words that help.
#[test]
fn what_an_ordinary_user_may_not() {
    let account = match Account::new() {
        Ok(account) => account,
        Err(reason) => skip!("{reason}"),
    };
    let refuse = |flags: &[&str], words: &str| {
        let finished = run(account
            .copperfs(&[&["mount"], flags].concat())
            .arg(&account.point));
        assert!(finished.refused().contains(words), "{finished:?}");
        assert!(account.mounted().is_none());
    };
    let allowed = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !allowed
        .lines()
        .any(|line| line.trim() == "user_allow_other")
    {
        refuse(&["--allow-other"], "user_allow_other");
    }
    refuse(&["--open", "passthrough"], "CAP_SYS_ADMIN");
    // A directory of root: the error must not blame the kernel.
    let closed = account.home.dir("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let origin = format!("--origin=/r={}", closed.display());
    refuse(&[&origin], "cannot open the directory: Permission denied");
}

/// If another user has taken the usual directory in `/tmp`, a user can still launch, and later commands
/// find the launch without further options.
#[test]
fn a_squatted_runtime_directory_stops_no_launch() {
    let account = match Account::new() {
        Ok(account) => account,
        Err(reason) => skip!("{reason}"),
    };
    // A separate /tmp for the namespace, in which root has created the directory first.
    const SQUAT: &str =
        "name=${1##*/}; mount -t tmpfs -o mode=1777 tmpfs /mnt && mkdir /mnt/$name &&
        mount --bind \"$1\" /mnt/$name && mount --rbind /mnt /tmp && mkdir -m 755 /tmp/copperfs-$2";
    let home = account.home.path();
    assert!(home.starts_with("/tmp"), "{}", home.display());
    let mut squat = Command::new("nsenter");
    let holder = account.holder.pid().as_raw_nonzero().to_string();
    squat.args(["--mount", "--target", &holder, "bash", "-c", SQUAT, "squat"]);
    let squatted = run(squat.arg(home).arg(USER.to_string()));
    assert!(squatted.status.success(), "{squatted:?}");
    let copperfs = |arguments: &[&str]| {
        let mut command = account.copperfs(arguments);
        command.env_remove("XDG_RUNTIME_DIR").arg(&account.point);
        run(&mut command)
    };
    let launched = copperfs(&["launch", "--hosts", "local:2", "--origin", "/usr"]);
    assert!(launched.status.success(), "{launched:?}");
    let made = account.run("ls", &["-d", "/tmp"]);
    assert!(made.status.success(), "{made:?}");
    let first = account.point.join("0/usr/bin/env").display().to_string();
    assert!(account.run("cat", &[&first]).status.success());
    let again = copperfs(&["launch", "--hosts", "local:2", "--origin", "/usr"]);
    assert!(again.refused().contains("already mounted"), "{again:?}");
    let ended = copperfs(&["unmount", "--all"]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.text().lines().count(), 2, "by its record: {ended:?}");
}

/// Root mounts the image of a user's mount, without being let into it otherwise; and the user's own rights stay.
#[test]
fn root_attends_the_mount_of_an_ordinary_user() {
    let account = match Account::new() {
        Ok(account) => account,
        Err(reason) => skip!("{reason}"),
    };
    let (origin, index) = (
        account.home.dir("origin"),
        account.home.path().join("run/index"),
    );
    fs::write(origin.join("file"), "content").unwrap();
    fs::write(origin.join("secret"), "secret").unwrap();
    fs::set_permissions(origin.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    account.home.settle();
    let done = |finished: Finished| {
        assert!(finished.status.success(), "{finished:?}");
        finished.text()
    };
    done(run(account
        .copperfs(&["index", "build", "-o"])
        .arg(&index)
        .arg(&origin)));
    let flags = [
        format!("--origin=/lus=file://{}", origin.display()),
        format!("--index=/lus=file://{}", index.display()),
    ];
    let mut mount = account.copperfs(&["mount", "--front=auto"]);
    done(run(mount.args(&flags).arg(&account.point)));
    let attend = |program: &mut Command| run(program.arg(&account.point));
    let as_user = attend(&mut account.copperfs(&["attend"]));
    assert!(as_user.refused().contains("needs root"), "{as_user:?}");
    let mut root = Command::new("nsenter");
    let pid = account.holder.pid().as_raw_nonzero().to_string();
    root.args(["--mount", "--target", &pid])
        .arg(&account.program);
    let said = done(attend(root.arg("attend")));
    if said.contains("this kernel") {
        crate::skipping::not_on_this_kernel("mounts no EROFS from files");
        return;
    }
    assert!(said.contains("/lus: the kernel has an image"), "{said}");
    let inside = |name: &str| account.point.join("lus").join(name).display().to_string();
    assert_eq!(account.run("cat", &[&inside("file")]).text(), "content");
    let secret = account.run("cat", &[&inside("secret")]);
    assert!(secret.refused().contains("Permission denied"), "{secret:?}");
    let filesystem = account.run("stat", &["-f", "-c", "%T", &inside("file")]);
    assert!(filesystem.text().contains("erofs"), "{filesystem:?}");
    done(run(account
        .copperfs(&["clear", "--everything"])
        .arg(&account.point)));
    assert_eq!(account.run("cat", &[&inside("file")]).text(), "content");
    done(run(account.copperfs(&["unmount"]).arg(&account.point)));
    assert!(account.mounted().is_none());
}
