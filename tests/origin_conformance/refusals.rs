//! The error messages of a mount for stores that refuse requests, and for addresses without a store. Each
//! message has the origin, the cause and a remedy, and no secret.

use crate::backends::upload;
use crate::faulty_server::{Reply, Server};
use crate::fixtures::{path, quick};
use crate::servers::{AzureServer, S3Server};
use copperfs::origin::{OriginOptions, OriginSpec, Origins};
use copperfs_overlay::loopback::Port;
use std::collections::BTreeMap;

/// Never to be seen in a message.
const SECRETS: [&str; 4] = [
    S3Server::SECRET,
    AzureServer::KEY,
    WRONG_KEY,
    "the-body's-secret",
];
/// A key without an owner.
const WRONG_KEY: &str = "YW5vdGhlci1rZXktb2Ytbm9ib2R5";

fn spec(uri: &str, options: &[(&str, &str)]) -> OriginSpec {
    let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    OriginSpec {
        prefix: path("data"),
        uri: uri.to_owned(),
        options: options.iter().map(text).collect(),
    }
}

/// The error message of a mount of `spec`.
async fn refusal(spec: &OriginSpec, options: &OriginOptions) -> String {
    let error = match Origins::open(std::slice::from_ref(spec), options) {
        Ok(origins) => origins.check().await.expect_err(&spec.uri),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("origin {}: ", spec.uri)),
        "{text}"
    );
    assert!(text.contains("; "), "nothing to try: {text}");
    for secret in SECRETS {
        assert!(!text.contains(secret), "{text}");
    }
    text
}

async fn accepted(spec: &OriginSpec, options: &OriginOptions) {
    let origins = Origins::open(std::slice::from_ref(spec), options).expect("origins");
    origins.check().await.expect(&spec.uri);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_refuses_wrong_keys_and_buckets() {
    let server = S3Server::start().await;
    let (right, wrong) = (server.options(S3Server::SECRET), server.options(WRONG_KEY));
    accepted(&server.spec("s3://bucket"), &right).await;
    let text = refusal(&server.spec("s3://bucket"), &wrong).await;
    assert!(text.contains("403 SignatureDoesNotMatch"), "{text}");
    let mut unknown = right.clone();
    unknown
        .env
        .insert("AWS_ACCESS_KEY_ID".into(), "nobody".into());
    let text = refusal(&server.spec("s3://bucket"), &unknown).await;
    assert!(text.contains("403 InvalidAccessKeyId"), "{text}");
    let text = refusal(&server.spec("s3://no-such-bucket"), &right).await;
    assert!(text.contains("no such bucket"), "{text}");
    let mut spec = server.spec("s3://bucket");
    spec.options.insert("no_such_option".into(), "1".into());
    let text = refusal(&spec, &right).await;
    assert!(text.contains("no_such_option"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azure_refuses_wrong_keys_and_containers() {
    let server = AzureServer::start().await;
    upload(&server, &["box"], &[]);
    let (right, wrong) = (server.options(AzureServer::KEY), server.options(WRONG_KEY));
    accepted(&server.spec("az://box/top"), &right).await;
    let text = refusal(&server.spec("az://box/top"), &wrong).await;
    assert!(text.contains("403 AuthorizationFailure"), "{text}");
    let text = refusal(&server.spec("az://no-such-box/top"), &right).await;
    assert!(text.contains("no such container"), "{text}");
    let mut bare = server.spec("az://box/top");
    bare.options.remove("allow_http");
    let text = refusal(&bare, &right).await;
    assert!(text.contains("AZURE_ALLOW_HTTP"), "{text}");
    let text = refusal(&server.spec("az://box/top"), &server.options("no base64~")).await;
    assert!(text.contains("not base64"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_google_is_refused() {
    let server = S3Server::without_keys().await;
    accepted(&server.google("gs://bucket"), &quick()).await;
    let text = refusal(&server.google("gs://no-such-bucket"), &quick()).await;
    assert!(text.contains("no such bucket"), "{text}");
    let mut spec = server.google("gs://bucket");
    spec.options.remove("skip_signature");
    let file = "/no/such/key.json";
    spec.options.insert("service_account".into(), file.into());
    let text = refusal(&spec, &quick()).await;
    assert!(text.contains(file), "{text}");
}

/// The codes that no server here returns: a wrong clock, a region, an archive.
#[tokio::test]
async fn known_codes_have_a_remedy() {
    for (status, code, hint) in [
        (403, "RequestTimeTooSkewed", "clock"),
        (400, "AuthorizationHeaderMalformed", "AWS_REGION"),
        (400, "ExpiredToken", "expired"),
        (403, "AuthenticationFailed", "AZURE_STORAGE_ACCOUNT_KEY"),
        (403, "SomethingNew", "list permission"),
    ] {
        let body = format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>the-body's-secret</Message></Error>"
        );
        let server =
            Server::start(move |_| Reply::Answer(status, String::new(), body.clone().into_bytes()))
                .await;
        let endpoint = format!("http://{}", server.address);
        let options = [
            ("endpoint", endpoint.as_str()),
            ("allow_http", "true"),
            ("access_key_id", "someone"),
            ("secret_access_key", S3Server::SECRET),
        ];
        let text = refusal(&spec("s3://bucket/top", &options), &quick()).await;
        assert!(text.contains(hint), "{code}: {text}");
        assert!(text.contains(&status.to_string()), "{code}: {text}");
        assert_eq!(text.contains(code), code != "SomethingNew", "{text}");
    }
}

#[tokio::test]
async fn addresses_where_no_store_is() {
    let server = Server::start(|_| Reply::Answer(200, String::new(), Vec::new())).await;
    let plain = server.address.to_string();
    let free = Port::tcp().expect("a port");
    let nobody = free.address().to_string();
    for (authority, words) in [
        (plain.as_str(), "does not speak TLS"),
        (nobody.as_str(), "Connection refused"),
        ("no-such-host.invalid", "no such host"),
    ] {
        let endpoint = format!("https://{authority}");
        let keys = [
            ("endpoint", endpoint.as_str()),
            ("access_key_id", "someone"),
            ("secret_access_key", S3Server::SECRET),
        ];
        let account = [
            ("endpoint", endpoint.as_str()),
            ("account_name", "someone"),
            ("access_key", AzureServer::KEY),
        ];
        let google = [("base_url", endpoint.as_str()), ("skip_signature", "true")];
        let web = format!("{endpoint}/base");
        for spec in [
            spec("s3://bucket/top", &keys),
            spec("az://box/top", &account),
            spec("gs://bucket/top", &google),
            spec(&web, &[]),
        ] {
            let text = refusal(&spec, &quick()).await;
            assert!(text.contains(words), "{text}");
        }
    }
    let nowhere = OriginSpec {
        prefix: path("data"),
        uri: "az://box".into(),
        options: BTreeMap::new(),
    };
    let text = refusal(&nowhere, &quick()).await;
    assert!(text.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{text}");
}

/// Without credentials the clients ask the cloud's metadata service, and never the store. The error names
/// the missing credentials, and blames neither the network nor the permissions.
#[tokio::test]
async fn missing_credentials_are_named() {
    let store = Server::start(|_| Reply::Answer(200, String::new(), Vec::new())).await;
    let refusing = Server::start(|_| Reply::Answer(403, String::new(), Vec::new())).await;
    let free = Port::tcp().expect("a port");
    let nobody = free.address();
    let endpoint = format!("http://{}", store.address);
    for (address, answer) in [
        (nobody, "does not answer (Connection refused"),
        (refusing.address, "answered 403"),
    ] {
        let service = format!("http://{address}");
        let amazon = [
            ("endpoint", endpoint.as_str()),
            ("allow_http", "true"),
            ("metadata_endpoint", service.as_str()),
        ];
        let token = format!("{service}/metadata/identity/oauth2/token");
        let azure = [
            ("endpoint", endpoint.as_str()),
            ("allow_http", "true"),
            ("account_name", "someone"),
            ("msi_endpoint", token.as_str()),
        ];
        for (spec, missing, way_out) in [
            (
                spec("s3://bucket/top", &amazon),
                "AWS_ACCESS_KEY_ID is not set",
                "AWS_SKIP_SIGNATURE=true",
            ),
            (
                spec("az://box/top", &azure),
                "neither AZURE_STORAGE_ACCOUNT_KEY nor",
                "AZURE_SKIP_SIGNATURE=true",
            ),
        ] {
            let text = refusal(&spec, &quick()).await;
            for words in [missing, way_out, "the cloud's metadata service", answer] {
                assert!(text.contains(words), "{words}: {text}");
            }
            for blamed in ["check the endpoint", "list permission"] {
                assert!(!text.contains(blamed), "{blamed}: {text}");
            }
            if spec.uri.starts_with("s3") {
                let looked =
                    "HOME is not set, so ~/.aws/credentials and ~/.aws/config are not read";
                assert!(text.contains(looked), "{text}");
            }
        }
    }
    assert!(store.requests().is_empty(), "{:?}", store.requests());
}
