//! Credentials of an S3 origin where Amazon's tools keep them: profiles, commands, single sign-on, roles.

use crate::object_store::{Server, rclone};
use crate::skip;
use crate::support::command::{Background, Finished, check, has_python_module, python, run};
use crate::support::fixture::noise;
use crate::support::{Mount, Scratch, copperfs, eventually, is_root};
use copperfs_overlay::loopback::Port;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A server with files `f0`, `f1`, …, and a home directory.
struct Fixture {
    server: Server,
    home: Scratch,
}

impl Fixture {
    const FILES: u64 = 40;

    fn new() -> Option<Self> {
        let server = Server::with_keys(rclone()?, keys("first"));
        fs::create_dir_all(server.bucket().join("set")).unwrap();
        for number in 0..Self::FILES {
            let path = server.bucket().join(format!("set/f{number}"));
            fs::write(path, noise(number, 9_000)).unwrap();
        }
        let home = Scratch::new();
        Some(Self { server, home })
    }

    /// A file below `~/.aws`.
    fn write(&self, name: &str, text: &str) {
        self.home.file(&format!(".aws/{name}"), text);
    }

    /// The command that mounts the bucket with this home and without keys in the environment. Each file is requested
    /// when it is read, and not before.
    fn mounting(&self) -> Command {
        let mut mount = copperfs(["mount", "--origin", "/data=s3://bucket/set"]);
        mount.args(["--request-timeout", "20s", "--bundles=off"]);
        without_credentials(&mut mount, self.home.path());
        mount.env("AWS_ENDPOINT_URL_S3", self.server.endpoint());
        mount
    }

    fn mount(&self, command: &mut Command) -> Mount {
        Mount::at(&self.home.dir("mnt"), command)
    }

    /// The error of a mount.
    fn refused(&self, command: &mut Command) -> String {
        let finished: Finished = run(command.arg(self.home.dir("mnt")));
        finished.refused().to_owned()
    }
}

fn without_credentials(command: &mut Command, home: &Path) {
    for name in [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
    ] {
        command.env_remove(name);
    }
    command.env("HOME", home).env("AWS_ALLOW_HTTP", "true");
    // Nothing answers there, so that a machine of a cloud behaves as any other.
    command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
}

fn keys(name: &str) -> (String, String) {
    (format!("{name}-key"), format!("{name}-secret"))
}

/// The properties of a profile with these keys.
fn properties((key, secret): (String, String)) -> String {
    format!("aws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
}

#[track_caller]
fn read(mount: &Mount, number: u64) {
    let content = fs::read(mount.path(format!("data/f{number}"))).unwrap();
    assert!(content == noise(number, 9_000));
}

#[track_caller]
fn has_no_secret(mount: &Mount, secrets: &[&str]) {
    let log = mount.log();
    for secret in secrets {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

/// The keys, the region and the endpoint are the profile's. A profile that is missing is named.
#[test]
fn a_profile_is_used() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(fixture) = Fixture::new() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let lab = properties(keys("first"));
    fixture.write(
        "credentials",
        &format!("[default]\n{}[lab]\n{lab}", properties(keys("other"))),
    );
    let endpoint = fixture.server.endpoint();
    fixture.write(
        "config",
        &format!("[profile lab]\nregion = eu-1\nendpoint_url = {endpoint}\n"),
    );
    let message = fixture.refused(fixture.mounting().env("AWS_PROFILE", "lba"));
    for words in [
        "there is no profile \"lba\", which AWS_PROFILE names",
        ".aws/credentials has no profile lba",
        "did you mean lab?",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let message = fixture.refused(&mut fixture.mounting());
    assert!(
        message.contains("InvalidAccessKeyId"),
        "the default's keys: {message}"
    );
    let mut mount = fixture.mounting();
    mount
        .env("AWS_PROFILE", "lab")
        .env_remove("AWS_ENDPOINT_URL_S3");
    let mount = fixture.mount(&mut mount);
    read(&mount, 0);
    has_no_secret(&mount, &["first-secret", "other-secret"]);
}

/// A profile that the origin names overrides the environment, as `--profile` of other tools does.
#[test]
fn an_origin_names_its_profile() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(fixture) = Fixture::new() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    fixture.write(
        "credentials",
        &format!("[lab]\n{}", properties(keys("first"))),
    );
    let config = "[[origin]]\nprefix = \"/data\"\nuri = \"s3://bucket/set\"\n[origin.options]\nprofile = \"lab\"\n";
    let config = fixture.home.file("job.toml", config);
    let mut mount = copperfs(["mount", "--config"]);
    without_credentials(mount.arg(config), fixture.home.path());
    mount.env("AWS_ENDPOINT_URL_S3", fixture.server.endpoint());
    mount
        .env("AWS_ACCESS_KEY_ID", "another")
        .env("AWS_SECRET_ACCESS_KEY", "another");
    let mount = fixture.mount(&mut mount);
    read(&mount, 0);
}

/// Readers see no error when the keys change in the file first. A reload finds them at any time.
#[test]
fn keys_of_a_file_are_rotated() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(mut fixture) = Fixture::new() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let store = |fixture: &Fixture, name| {
        fixture.write(
            "credentials",
            &format!("[default]\n{}", properties(keys(name))),
        );
    };
    store(&fixture, "first");
    let mount = fixture.mount(&mut fixture.mounting());
    read(&mount, 0);
    store(&fixture, "second");
    fixture.server.change_keys(keys("second"));
    for number in 1..4 {
        read(&mount, number);
    }
    store(&fixture, "third");
    fixture.server.change_keys(keys("third"));
    let said = check(copperfs(["reload"]).arg(&mount.point));
    assert!(
        said.contains("s3://bucket/set: its credentials were read again"),
        "{said}"
    );
    read(&mount, 4);
    has_no_secret(&mount, &["first-secret", "second-secret", "third-secret"]);
}

/// The command runs again before the credentials expire, while the mount is read, and not for each request.
#[test]
fn a_command_runs_again_in_time() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(fixture) = Fixture::new() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let runs = fixture.home.file("runs", "");
    let (key, secret) = keys("first");
    let script = fixture.home.file(
        "keys",
        format!(
            "#!/bin/sh\n[ \"$1\" = 'two words' ] || exit 4\necho x >> {}\n\
             end=$(date -u -d '+6 seconds' +%Y-%m-%dT%H:%M:%SZ)\n\
             echo '{{\"Version\": 1, \"AccessKeyId\": \"{key}\", \"SecretAccessKey\": \"{secret}\", \
             \"SessionToken\": \"t\", \"Expiration\": \"'$end'\"}}'\n",
            runs.display()
        ),
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let profile = format!(
        "[default]\ncredential_process = {} 'two words'\n",
        script.display()
    );
    fixture.write("config", &profile);
    let mount = fixture.mount(&mut fixture.mounting());
    let began = Instant::now();
    for number in 0..Fixture::FILES {
        read(&mount, number);
        std::thread::sleep(Duration::from_millis(400));
    }
    let ran = fs::read_to_string(&runs).unwrap().lines().count();
    // It may be asked again after each 3 seconds, as the end is a whole second.
    let most = usize::try_from(began.elapsed().as_secs() / 3 + 2).unwrap();
    assert!(
        (3..=most).contains(&ran),
        "{ran} runs in {:?}",
        began.elapsed()
    );
    assert!(!mount.log().contains("are not renewed"), "{}", mount.log());
    has_no_secret(&mount, &[&secret]);
    fs::write(&script, "#!/bin/sh\nexit 9\n").unwrap();
    check(copperfs(["unmount"]).arg(&mount.point));
    let message = fixture.refused(&mut fixture.mounting());
    let words = "credential_process of the profile default failed (exit status: 9)";
    assert!(message.contains(words), "{message}");
}

/// Stands for the services of single sign-on, which exist in Amazon's cloud only: renews the token `refresh`, and gives
/// credentials to the holder of the renewed one. Keeps the first lines of all requests. Serves until the process ends.
fn portal(given: (String, String), requests: &Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, requests) = (listener.local_addr().unwrap(), Arc::clone(requests));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
            let head = head.to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map_or(0, |length| length.parse().unwrap());
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            requests
                .lock()
                .unwrap()
                .push(head.lines().next().unwrap().to_owned());
            let renews = head.starts_with("post /token ") && body.contains("\"refresh-me\"");
            let gives = head.contains("x-amz-sso_bearer_token: renewed-token\r\n");
            let (status, body) = if renews {
                let body = r#"{"accessToken": "renewed-token", "expiresIn": 28800, "tokenType": "Bearer"}"#;
                ("200 OK", body.to_owned())
            } else if gives {
                let (key, secret) = &given;
                let body = format!(
                    r#"{{"roleCredentials": {{"accessKeyId": "{key}", "secretAccessKey": "{secret}",
                        "sessionToken": "t", "expiration": 32503680000000}}}}"#
                );
                ("200 OK", body)
            } else {
                ("401 Unauthorized", "{}".to_owned())
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            // The client may have gone.
            drop(reader.get_mut().write_all(answer.as_bytes()));
        }
    });
    address
}

/// The token of `aws sso login` is renewed, stored for other tools, and exchanged for credentials.
#[test]
fn a_session_of_single_sign_on_is_used() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(fixture) = Fixture::new() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    fixture.write(
        "config",
        "[profile lab]\nsso_session = my-sso\nsso_account_id = 123456789012\nsso_role_name = Reader\n\
         [sso-session my-sso]\nsso_region = eu-west-1\nsso_start_url = https://start.example\n",
    );
    let requests = Arc::new(Mutex::new(Vec::new()));
    let portal = format!("http://{}", portal(keys("first"), &requests));
    let mounting = || {
        let mut mount = fixture.mounting();
        mount
            .env("AWS_PROFILE", "lab")
            .env("AWS_ENDPOINT_URL_SSO", &portal);
        mount.env("AWS_ENDPOINT_URL_SSO_OIDC", &portal);
        mount
    };
    let token = "sso/cache/0ad374308c5a4e22f723adf10145eafad7c4031c.json";
    for stored in [
        "",
        r#"{"accessToken": "old-token", "expiresAt": "2001-01-01T00:00:00Z"}"#,
        r#"{"accessToken": "another-token", "expiresAt": "2999-01-01T00:00:00Z"}"#,
    ] {
        fixture.write(token, stored);
        let message = fixture.refused(&mut mounting());
        assert!(
            message.contains("run aws sso login --profile lab"),
            "{message}"
        );
        assert!(!message.contains("-token"), "{message}");
    }
    fixture.write(
        token,
        r#"{"accessToken": "old-token", "expiresAt": "2001-01-01T00:00:00Z", "refreshToken": "refresh-me",
            "clientId": "id", "clientSecret": "client-secret", "registrationExpiresAt": "2999-01-01T00:00:00Z",
            "startUrl": "https://start.example"}"#,
    );
    let mount = fixture.mount(&mut mounting());
    read(&mount, 0);
    let asked = requests.lock().unwrap().clone();
    let of = |start: &str| asked.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(of("post /token "), 1, "{asked:?}");
    let wanted = "get /federation/credentials?account_id=123456789012&role_name=reader ";
    assert!(
        asked.iter().any(|line| line.starts_with(wanted)),
        "{asked:?}"
    );
    let stored = fs::read_to_string(fixture.home.path().join(".aws").join(token)).unwrap();
    for kept in ["renewed-token", "refresh-me", "https://start.example"] {
        assert!(stored.contains(kept), "{stored}");
    }
    has_no_secret(
        &mount,
        &[
            "first-secret",
            "renewed-token",
            "client-secret",
            "refresh-me",
        ],
    );
}

/// moto: a server for S3, roles and accounts, which checks signatures and policies.
struct Accounts {
    port: Port,
    home: Scratch,
    _process: Background,
    keys: (String, String),
    role: String,
}

impl Accounts {
    fn start() -> Self {
        let port = Port::tcp().unwrap();
        let address = port.address();
        let home = Scratch::new();
        let mut serve = python();
        serve.args([
            "-m",
            "moto.server",
            "-H",
            "127.0.0.1",
            "-p",
            &address.port().to_string(),
        ]);
        serve.current_dir(home.path()).stdin(Stdio::null());
        serve.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Background::spawn(&mut serve);
        eventually(Duration::from_secs(60), "moto is up", || {
            TcpStream::connect(address).is_ok()
        });
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aws_accounts.py");
        let endpoint = format!("http://{address}");
        let mut fill = python();
        let printed = check(
            fill.arg(script)
                .args([&endpoint, "bucket", "set/f0", "the content"]),
        );
        let [key, secret, role] = printed.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{printed}");
        };
        Self {
            port,
            home,
            _process: process,
            keys: (key.to_owned(), secret.to_owned()),
            role: role.to_owned(),
        }
    }

    /// Whether requests have to be signed.
    fn checks(&self, checks: bool) {
        let mut stream = TcpStream::connect(self.port.address()).unwrap();
        let unchecked = if checks { "0" } else { "inf" };
        write!(
            stream,
            "POST /moto-api/reset-auth HTTP/1.1\r\nhost: moto\r\ncontent-type: text/plain\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{unchecked}",
            unchecked.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn mounting(&self) -> Command {
        let mut mount = copperfs(["mount", "--origin", "/data=s3://bucket/set"]);
        mount.args(["--request-timeout", "20s"]);
        without_credentials(&mut mount, self.home.path());
        // Of all services, as for Amazon's tools.
        mount.env(
            "AWS_ENDPOINT_URL",
            format!("http://{}", self.port.address()),
        );
        mount
    }
}

/// The keys of one profile may only assume the role of another, which may read.
#[test]
fn a_role_of_a_profile_is_assumed() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_python_module("moto.server, boto3") {
        skip!("no moto: run scripts/test-servers");
    }
    let accounts = Accounts::start();
    accounts.checks(true);
    let text = |secret: &str| {
        format!(
            "[user]\n{}",
            properties((accounts.keys.0.clone(), secret.into()))
        )
    };
    accounts.home.file(".aws/credentials", text("wrong-secret"));
    let role = format!(
        "[profile role]\nrole_arn = {}\nsource_profile = user\n",
        accounts.role
    );
    accounts
        .home
        .file(".aws/config", format!("[profile user]\n{role}"));
    let point = accounts.home.dir("mnt");
    let refused = run(accounts.mounting().env("AWS_PROFILE", "role").arg(&point));
    let message = refused.refused();
    assert!(
        message.contains("the service for roles (STS) answered 403 SignatureDoesNotMatch"),
        "{message}"
    );
    assert!(!message.contains("wrong-secret"), "{message}");
    accounts
        .home
        .file(".aws/credentials", text(&accounts.keys.1));
    let refused = run(accounts.mounting().env("AWS_PROFILE", "user").arg(&point));
    assert!(refused.refused().contains("403"), "{refused:?}");
    let mut mount = accounts.mounting();
    let mount = Mount::at(&point, mount.env("AWS_PROFILE", "role"));
    assert_eq!(
        fs::read_to_string(mount.path("data/f0")).unwrap(),
        "the content"
    );
    has_no_secret(&mount, &[&accounts.keys.1]);
}

/// The token in a file is exchanged for keys of a role, with which requests are signed.
#[test]
fn a_role_is_assumed_with_the_token_of_a_file() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_python_module("moto.server, boto3") {
        skip!("no moto: run scripts/test-servers");
    }
    let accounts = Accounts::start();
    let token = accounts.home.path().join("token");
    let mounting = || {
        let mut mount = accounts.mounting();
        mount
            .env("AWS_WEB_IDENTITY_TOKEN_FILE", &token)
            .env("AWS_ROLE_ARN", &accounts.role);
        mount
    };
    let point = accounts.home.dir("mnt");
    let refused = run(mounting().arg(&point));
    let message = refused.refused();
    assert!(message.contains("/token cannot be read"), "{message}");
    fs::write(&token, "a-token-of-some-issuer").unwrap();
    // moto wants even this request signed, which has no keys yet; after it, all are checked.
    let mount = Mount::at(&point, &mut mounting());
    accounts.checks(true);
    assert_eq!(
        fs::read_to_string(mount.path("data/f0")).unwrap(),
        "the content"
    );
    has_no_secret(&mount, &["a-token-of-some-issuer"]);
}
