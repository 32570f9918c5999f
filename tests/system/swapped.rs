//! Another origin under the same name: images and servers are replaced by others whose files have the same
//! names, inode numbers, sizes and times. Cached bytes of one are never returned for another.

use crate::skip;
use crate::support::command::Background;
use crate::support::hosts::{self, Job};
use crate::support::images::{BYTES, Kind, Mounted, image, missing, renamed};
use crate::support::{Mount, Scratch, check, copperfs, eventually, is_root, run};
use copperfs_overlay::loopback::Port;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[track_caller]
fn holds(file: &Path, fill: u8) {
    let bytes = fs::read(file).unwrap();
    assert_eq!(bytes.len(), BYTES);
    let wrong = bytes.iter().find(|&&byte| byte != fill);
    assert_eq!(wrong.copied().map(char::from), None, "{}", file.display());
}

/// Flags with a store, and without read-ahead beyond a test's own reads.
fn flags(disk: &Path) -> Vec<String> {
    let disk = format!("--disk={}:1GiB", disk.display());
    vec![disk, "--bundles=off".to_owned(), "--push=off".to_owned()]
}

/// Serves `origin` with the store at `disk`, each time as a new launch.
#[track_caller]
fn launch(origin: &Path, disk: &Path) -> Mount {
    let flags = flags(disk);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Mount::with(origin, &flags)
}

/// Inode numbers and times as `stat` reports them.
fn told(file: &Path) -> String {
    check(
        Command::new("stat")
            .args(["-c", "%i %s %.9Y %.9Z"])
            .arg(file),
    )
}

/// `point` is the mount point of the images, `origin` the served directory, and `file` a path in it.
#[track_caller]
fn swapped_live(kind: Kind, scratch: &Scratch, point: &Path, origin: &Path, file: &str) {
    let one = image(scratch, kind, "one.img", b'1');
    let two = image(scratch, kind, "two.img", b'2');
    let mounted = Mounted::at(point, &one);
    let before = told(&origin.join(file));
    let disk = scratch.path().join("disk");
    let mount = launch(origin, &disk);
    holds(&mount.path(file), b'1');
    let mounted = mounted.replace(&two);
    assert_eq!(told(&origin.join(file)), before, "nothing tells them apart");
    mount.clear("/");
    holds(&mount.path(file), b'2');
    // The first image again; it counts as a third one, because that cannot be distinguished.
    let mounted = mounted.replace(&one);
    mount.clear("/");
    holds(&mount.path(file), b'1');
    mount.unmount();
    drop(mounted);
}

#[test]
fn an_image_that_replaces_its_like_below_an_origin_is_read_anew() {
    if let Some(missing) = missing() {
        skip!("needs {missing}");
    }
    for kind in [Kind::Ext4, Kind::Squashfs] {
        let scratch = Scratch::new();
        let origin = scratch.dir("origin");
        let point = scratch.dir("origin/image");
        swapped_live(kind, &scratch, &point, &origin, "image/dir/file");
    }
}

#[test]
fn an_image_that_replaces_its_like_at_an_origin_is_read_anew() {
    if let Some(missing) = missing() {
        skip!("needs {missing}");
    }
    for kind in [Kind::Ext4, Kind::Squashfs] {
        let scratch = Scratch::new();
        let origin = scratch.dir("origin");
        swapped_live(kind, &scratch, &origin, &origin, "dir/file");
        // Also with a directory of the image as the origin.
        let scratch = Scratch::new();
        let point = scratch.dir("image");
        swapped_live(kind, &scratch, &point, &point.join("dir"), "file");
    }
}

/// An image with a UUID is found in the store in a later launch, and another image is not.
#[test]
fn an_image_with_another_uuid_is_read_anew_by_the_next_launch() {
    if let Some(missing) = missing() {
        skip!("needs {missing}");
    }
    let scratch = Scratch::new();
    let origin = scratch.dir("origin");
    let one = image(&scratch, Kind::Ext4, "one.img", b'1');
    let two = image(&scratch, Kind::Ext4, "two.img", b'2');
    renamed(&two);
    let disk = scratch.path().join("disk");
    let mounted = Mounted::at(&origin, &one);
    let before = told(&origin.join("dir/file"));
    let mount = launch(&origin, &disk);
    holds(&mount.path("dir/file"), b'1');
    mount.unmount();
    let mounted = mounted.replace(&one);
    let mount = launch(&origin, &disk);
    holds(&mount.path("dir/file"), b'1');
    assert_eq!(mount.stats().get("origin.opens"), 0, "it is in the store");
    mount.unmount();
    let mounted = mounted.replace(&two);
    assert_eq!(told(&origin.join("dir/file")), before);
    let mount = launch(&origin, &disk);
    holds(&mount.path("dir/file"), b'2');
    mount.unmount();
    drop(mounted);
}

/// Such an image has no identity, so nothing is kept of it for the next launch.
#[test]
fn an_image_without_an_identity_is_read_anew_by_the_next_launch() {
    if let Some(missing) = missing() {
        skip!("needs {missing}");
    }
    let scratch = Scratch::new();
    let origin = scratch.dir("origin");
    let one = image(&scratch, Kind::Squashfs, "one.img", b'1');
    let two = image(&scratch, Kind::Squashfs, "two.img", b'2');
    let disk = scratch.path().join("disk");
    let mounted = Mounted::at(&origin, &one);
    let mount = launch(&origin, &disk);
    holds(&mount.path("dir/file"), b'1');
    mount.unmount();
    let mounted = mounted.replace(&two);
    let mount = launch(&origin, &disk);
    holds(&mount.path("dir/file"), b'2');
    mount.unmount();
    drop(mounted);
}

/// A web server whose tags and times are the same for all files of the same size.
struct Web {
    port: Port,
    _process: Background,
}

const WEB: &str = "
import http.server, os, sys

class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def end_headers(self):
        if sys.argv[3] == 'tags' and not self.path.endswith('/'):
            self.send_header('ETag', '\"always-this\"')
        super().end_headers()

os.chdir(sys.argv[2])
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

impl Web {
    #[track_caller]
    fn serve(root: &Path, tags: &str) -> Self {
        let port = Port::tcp().unwrap();
        let address = port.address();
        let mut serve = Command::new("python3");
        serve
            .args(["-c", WEB, &address.port().to_string()])
            .arg(root)
            .arg(tags);
        serve.stdin(Stdio::null()).stderr(Stdio::null());
        let process = Background::spawn(&mut serve);
        eventually(Duration::from_secs(60), "the server is up", || {
            TcpStream::connect(address).is_ok()
        });
        Self {
            port,
            _process: process,
        }
    }

    #[track_caller]
    fn launch(&self, scratch: &Scratch, prefix: &str) -> Mount {
        let origin = format!("/data=http://{}/{prefix}", self.port.address());
        let mut command = copperfs(["mount", "--origin", &origin]);
        command.args(flags(&scratch.path().join("disk")));
        Mount::at(&scratch.dir("mnt"), &mut command)
    }
}

/// Puts a file on a server, always with the same time.
fn put(scratch: &Scratch, name: &str, fill: u8) {
    let path = scratch.file(name, vec![fill; BYTES]);
    check(Command::new("touch").args(["-d", "@1704164645"]).arg(path));
}

#[test]
fn another_prefix_of_a_server_is_another_origin() {
    if !is_root() {
        skip!("needs root");
    }
    for tags in ["tags", "none"] {
        let scratch = Scratch::new();
        put(&scratch, "served/v1/file", b'1');
        put(&scratch, "served/v2/file", b'2');
        let web = Web::serve(&scratch.path().join("served"), tags);
        for (prefix, fill) in [("v1", b'1'), ("v2", b'2')] {
            let mount = web.launch(&scratch, prefix);
            holds(&mount.path("data/file"), fill);
            mount.unmount();
        }
        // Another form of the URI is the same origin; without tags the file is still requested again.
        let mount = web.launch(&scratch, "v1/");
        holds(&mount.path("data/file"), b'1');
        let again = u64::from(tags == "none");
        assert_eq!(mount.stats().get("origin.opens"), again, "{tags}");
        mount.unmount();
    }
}

#[test]
fn a_server_without_tags_is_not_trusted_across_launches() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let web = Web::serve(&scratch.dir("served"), "none");
    for fill in [b'1', b'2'] {
        put(&scratch, "served/file", fill);
        let mount = web.launch(&scratch, "");
        holds(&mount.path("data/file"), fill);
        mount.unmount();
    }
}

/// Two roots, each with its own image at `$image`.
fn two_roots(scratch: &Scratch) -> (Job, String) {
    let point = scratch.dir("image").display().to_string();
    let origin = format!("/image=file://{point}");
    let job = Job::new(2, &["--roots", "2", "--origin", &origin]);
    (job, point)
}

#[test]
fn roots_that_mount_one_filesystem_differently_agree() {
    if let Some(missing) = missing().or_else(hosts::missing) {
        skip!("needs {missing}");
    }
    let scratch = Scratch::new();
    let (job, point) = two_roots(&scratch);
    let image = image(&scratch, Kind::Ext4, "one.img", b'1');
    let other = scratch.dir("elsewhere").display().to_string();
    let image = image.display();
    check(&mut job.shell(1, &format!("mount -o loop,ro {image} {point}")));
    // Through another device and another mount point, and bound to the same path.
    let bound = format!("mount -o loop,ro {image} {other} && mount --bind {other} {point}");
    check(&mut job.shell(2, &bound));
    job.mount_all([1, 2]);
    for number in [1, 2] {
        let read = job.run(
            number,
            "cmp \"$1\"/image/dir/file <(head -c 65536 /dev/zero | tr '\\0' 1)",
        );
        assert!(read.status.success(), "{read:?}");
    }
}

#[test]
fn roots_with_different_filesystems_refuse() {
    if let Some(missing) = missing().or_else(hosts::missing) {
        skip!("needs {missing}");
    }
    let scratch = Scratch::new();
    let (job, point) = two_roots(&scratch);
    let one = image(&scratch, Kind::Ext4, "one.img", b'1');
    let two = image(&scratch, Kind::Ext4, "two.img", b'2');
    renamed(&two);
    for (number, image) in [(1, one), (2, two)] {
        let mount = format!("mount -o loop,ro {} {point}", image.display());
        check(&mut job.shell(number, &mount));
    }
    job.mount(1);
    let second = run(&mut job.mount_command(2));
    assert!(second.refused().contains("/image"), "{second:?}");
}
