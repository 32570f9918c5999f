//! What `copperfs doctor` finds out about an origin.

use crate::backends::upload;
use crate::faulty_server::{Reply, Server};
use crate::fixtures::{path, patient};
use crate::servers::{AzureServer, S3Server, WebServer};
use copperfs::origin::{Finding, OriginOptions, OriginSpec, Origins, Outcome};
use std::collections::BTreeMap;

async fn examine(spec: OriginSpec, options: &OriginOptions) -> Vec<Finding> {
    let origins = Origins::open(&[spec], options).expect("origins");
    let findings = origins.examine().await;
    for finding in &findings {
        let silent = finding.fix.is_empty();
        assert_eq!(silent, finding.outcome == Outcome::Good, "{finding:?}");
    }
    findings
}

fn outcomes(findings: &[Finding]) -> Vec<(&'static str, Outcome)> {
    let outcome = |finding: &Finding| (finding.what, finding.outcome);
    findings.iter().map(outcome).collect()
}

const ALL_GOOD: [(&str, Outcome); 4] = [
    ("origin reach", Outcome::Good),
    ("origin list", Outcome::Good),
    ("origin read", Outcome::Good),
    ("origin versions", Outcome::Good),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_are_as_they_should_be() {
    let azure = AzureServer::start().await;
    upload(&azure, &["box"], &["box/top/a/b/file"]);
    let findings = examine(azure.spec("az://box/top"), &azure.options(AzureServer::KEY)).await;
    assert_eq!(outcomes(&findings), ALL_GOOD, "{findings:?}");
    let s3 = S3Server::start().await;
    std::fs::write(s3.bucket().join("file"), "x").expect("a file");
    let findings = examine(s3.spec("s3://bucket"), &s3.options(S3Server::SECRET)).await;
    assert_eq!(outcomes(&findings), ALL_GOOD, "{findings:?}");
    let findings = examine(s3.spec("s3://bucket"), &s3.options("another")).await;
    assert_eq!(outcomes(&findings), [("origin reach", Outcome::Bad)]);
    assert!(
        findings[0].found.contains("SignatureDoesNotMatch"),
        "{findings:?}"
    );
    let findings = examine(s3.spec("s3://bucket/none"), &s3.options(S3Server::SECRET)).await;
    let poor = [
        ("origin reach", Outcome::Good),
        ("origin list", Outcome::Poor),
    ];
    assert_eq!(outcomes(&findings), poor, "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_web_server() {
    let web = WebServer::with_ranges().await;
    let findings = examine(web.spec(), &patient()).await;
    let poor = [
        ("origin reach", Outcome::Good),
        ("origin list", Outcome::Poor),
    ];
    assert_eq!(outcomes(&findings), poor, "{findings:?}");
}

/// A store with listings, but without tags and without ranges.
#[tokio::test]
async fn a_poor_store() {
    const TIME: &str = "last-modified: Wed, 01 Jan 2020 00:00:00 GMT\r\n";
    let server = Server::start(|request| {
        if request.target.contains("list-type=2") {
            let xml = "<ListBucketResult><Contents><Key>top/f</Key><Size>5</Size>\
                       <LastModified>2020-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>";
            Reply::Answer(200, String::new(), xml.into())
        } else {
            Reply::Answer(200, format!("{TIME}etag: W/\"1\"\r\n"), b"12345".to_vec())
        }
    })
    .await;
    let options = [
        ("endpoint", format!("http://{}", server.address)),
        ("allow_http", "true".to_owned()),
        ("skip_signature", "true".to_owned()),
    ];
    let spec = OriginSpec {
        prefix: path("data"),
        uri: "s3://bucket/top".to_owned(),
        options: BTreeMap::from(options.map(|(key, value)| (key.to_owned(), value))),
    };
    let findings = examine(spec, &patient()).await;
    let expected = [
        ("origin reach", Outcome::Good),
        ("origin list", Outcome::Good),
        ("origin read", Outcome::Poor),
        ("origin versions", Outcome::Poor),
    ];
    assert_eq!(outcomes(&findings), expected, "{findings:?}");
    assert!(findings[3].found.contains("weak"), "{findings:?}");
}
