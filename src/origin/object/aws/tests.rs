use super::*;
use object_store::StaticCredentialProvider;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A home directory, and the credentials of a client in it.
struct Fixture {
    home: tempfile::TempDir,
    credentials: AwsCredentials,
}

impl Fixture {
    /// With this profile `default`.
    fn new(profile: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let variables = BTreeMap::from([("HOME".to_owned(), home.path().display().to_string())]);
        let client = AmazonS3Builder::new();
        let web = (ClientOptions::new(), Retries::default());
        let found = AwsCredentials::new(&mut Keys::new(), None, &variables, client, web);
        let mut credentials = found.unwrap().unwrap();
        credentials.service = Arc::new(StaticCredentialProvider::new(AwsCredential {
            key_id: "of the service".into(),
            secret_key: String::new(),
            token: None,
        }));
        let fixture = Self { home, credentials };
        fixture.write(profile);
        fixture
    }

    fn write(&self, profile: &str) {
        let text = format!("[default]\n{profile}");
        std::fs::write(self.home.path().join(".aws/config"), text).unwrap();
    }

    async fn key_id(&self) -> String {
        self.credentials.present().await.unwrap().key_id.clone()
    }
}

/// A command that prints keys which last `seconds`, and counts its runs in the file `runs`, which has to be there.
fn command(directory: &Path, seconds: u32) -> String {
    let script = directory.join("keys");
    let text = format!(
        "#!/bin/sh\ncd '{}' || exit 1\n[ -e runs ] || exit 3\necho x >> runs\n\
         end=$(date -u -d '+{seconds} seconds' +%Y-%m-%dT%H:%M:%S.%NZ)\n\
         printf '{{\"Version\": 1, \"AccessKeyId\": \"K%s\", \"SecretAccessKey\": \"s\", \"Expiration\": \"%s\"}}' \
         $(wc -l < runs) $end\n",
        directory.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(directory.join("runs"), "").unwrap();
    format!("credential_process = {}\n", script.display())
}

const KEYS: &str = "aws_access_key_id=one\naws_secret_access_key=s\n";

#[tokio::test]
async fn other_keys_are_found_when_the_store_refuses_the_present_ones() {
    let fixture = Fixture::new(KEYS);
    assert_eq!(fixture.key_id().await, "one");
    let credentials = &fixture.credentials;
    let generation = credentials.generation();
    assert!(!credentials.has_others(generation).await, "the same ones");
    fixture.write(&KEYS.replace("one", "two"));
    // The files are not read for each refused request.
    assert!(!credentials.has_others(generation).await);
    assert_eq!(fixture.key_id().await, "one");
    credentials.state.lock().looked = None;
    assert!(credentials.has_others(generation).await);
    assert_eq!(fixture.key_id().await, "two");
    // A request that was sent before.
    assert!(credentials.has_others(generation).await);
}

#[tokio::test]
async fn credentials_are_renewed_before_they_expire_and_kept_if_that_fails() {
    let fixture = Fixture::new("");
    fixture.write(&command(fixture.home.path(), 4));
    assert_eq!(fixture.key_id().await, "K1");
    assert_eq!(fixture.key_id().await, "K1");
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    // Their last quarter.
    assert_eq!(fixture.key_id().await, "K2");
    let runs = fixture.home.path().join("runs");
    std::fs::rename(&runs, fixture.home.path().join("hidden")).unwrap();
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    assert_eq!(fixture.key_id().await, "K2", "they still last");
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let error = fixture.credentials.present().await.unwrap_err().to_string();
    assert!(
        error.contains("credential_process of the profile default failed (exit status: 3)"),
        "{error}"
    );
    std::fs::rename(fixture.home.path().join("hidden"), runs).unwrap();
    assert_eq!(fixture.key_id().await, "K3");
}

#[tokio::test]
async fn many_requests_search_once() {
    let fixture = Fixture::new("");
    fixture.write(&command(fixture.home.path(), 600));
    let requests = (0..20).map(|_| fixture.key_id());
    let keys = futures_util::future::join_all(requests).await;
    assert!(keys.iter().all(|key| key == "K1"), "{keys:?}");
}

#[tokio::test]
async fn without_a_profile_the_service_is_asked() {
    let fixture = Fixture::new("region = eu-west-1\n");
    assert_eq!(fixture.key_id().await, "of the service");
    assert!(!fixture.credentials.has_others(0).await);
}

#[tokio::test]
async fn the_output_of_a_command_is_checked_and_not_shown() {
    for (command, words) in [
        (
            "echo a-secret; echo a-secret >&2; exit 7",
            "failed (exit status: 7)",
        ),
        ("echo a-secret", "printed no JSON"),
        (
            "echo '{\"Version\":2,\"AccessKeyId\":\"a-secret\",\"SecretAccessKey\":\"a-secret\"}'",
            "version 2",
        ),
        (
            "echo '{\"Version\":1,\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"a-secret\",\"Expiration\":\"soon\"}'",
            "no date",
        ),
    ] {
        let fixture = Fixture::new(&format!("credential_process = {command}\n"));
        let error = fixture.credentials.present().await.unwrap_err().to_string();
        assert!(
            error.contains(words) && !error.contains("a-secret"),
            "{error}"
        );
    }
}

#[test]
fn a_profile_gives_the_region_and_the_endpoint_that_nothing_else_names() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    let text = "[profile lab]\nregion=eu-lab\nendpoint_url=http://all\nservices=here\n\
                [services here]\ns3 =\n  endpoint_url = http://s3\n";
    std::fs::write(home.path().join(".aws/config"), text).unwrap();
    let variables = BTreeMap::from([("HOME".to_owned(), home.path().display().to_string())]);
    let files = Files::read(&variables, own_user());
    let mut keys = Keys::new();
    add_settings(&mut keys, &files, "lab");
    assert_eq!(region(&keys), Some("eu-lab"));
    assert_eq!(last(&keys, &Key::Endpoint), Some("http://s3"));
    assert_eq!(files.endpoint("lab", "sts"), Some("http://all"));
    let mut keys = vec![
        (Key::DefaultRegion, "us".into()),
        (Key::S3Endpoint, "http://own".into()),
    ];
    add_settings(&mut keys, &files, "lab");
    assert_eq!(keys.len(), 2);
}

#[test]
fn dates_of_all_tools() {
    for text in [
        "2001-09-09T01:46:40Z",
        "2001-09-09T03:46:40+02:00",
        "2001-09-09T01:46:40UTC",
    ] {
        let seconds = date(text)
            .unwrap()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(seconds.as_secs(), 1_000_000_000, "{text}");
    }
    assert_eq!(date("soon"), None);
}
