//! Listings of 100,000 keys over the S3 protocol, from a small server that makes each page as it is
//! requested: the real one here reads its whole directory for every page.

use crate::faulty_server::{Reply, Request, Server, bucket};
use crate::fixtures::list_all;
use copperfs::origin::ObjectOrigin;
use std::collections::BTreeSet;
use std::fmt::Write;

const COUNT: usize = 100_000;
/// The maximum page of S3, even if more keys are requested.
const PAGE: usize = 1000;

/// Objects `top/0000000`, …; each tenth followed by a key that cannot be a name.
fn page(request: &Request) -> Reply {
    let query = request
        .target
        .split_once('?')
        .map_or("", |(_, query)| query);
    let value = |name: &str| {
        url::form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    };
    let number = |text: Option<String>| text.and_then(|text| text.parse::<usize>().ok());
    if value("prefix").as_deref() != Some("top/") {
        let nothing = b"<ListBucketResult></ListBucketResult>".to_vec();
        return Reply::Answer(200, String::new(), nothing);
    }
    let max = number(value("max-keys")).unwrap_or(PAGE).min(PAGE);
    let from = number(value("continuation-token")).unwrap_or(0);
    let to = (from + max).min(COUNT + COUNT / 10);
    let mut xml = String::from("<ListBucketResult><Prefix>top/</Prefix>");
    for item in from..to {
        let (round, place) = (item / 11, item % 11);
        // The eleventh has a control character.
        let (number, odd) = match place {
            10 => (round * 10 + 9, "&#10;"),
            place => (round * 10 + place, ""),
        };
        write!(
            xml,
            "<Contents><Key>top/{number:07}{odd}</Key><Size>1</Size><ETag>\"t\"</ETag>\
             <LastModified>2020-01-01T00:00:00.123Z</LastModified></Contents>"
        )
        .expect("text");
    }
    if to < COUNT + COUNT / 10 {
        write!(xml, "<NextContinuationToken>{to}</NextContinuationToken>").expect("text");
    }
    xml.push_str("</ListBucketResult>");
    Reply::Answer(200, String::new(), xml.into_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_keys() {
    let server = Server::start(page).await;
    let origin =
        ObjectOrigin::connect(&bucket(&server), &crate::fixtures::quick()).expect("an origin");
    for limit in [COUNT, 30_001] {
        let asked = server.requests().len();
        let pages = list_all(&origin, "", limit).await.expect("pages");
        assert!(pages.iter().all(|page| page.entries.len() <= limit));
        let entries: Vec<_> = pages.iter().flat_map(|page| &page.entries).collect();
        assert_eq!(entries.len(), COUNT, "each name once");
        let names: BTreeSet<_> = entries.iter().map(|entry| &entry.name).collect();
        assert_eq!(names.len(), COUNT);
        assert!(entries.iter().all(|entry| entry.name.len() == 7));
        // A page's worth of keys for each request, and little more where a listing ends in mid-page.
        let requests = server.requests().len() - asked;
        assert!(requests <= 130, "{requests} requests");
    }
}
