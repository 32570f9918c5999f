use super::*;
use crate::dataset::residency::Residency;
use crate::dataset::residency::tests::{catalog, cluster, decision, load};
use crate::job::{Activities, Proc, Readers};
use crate::model::Decision;
use crate::testing::noise;
use std::path::Path;
use std::time::Duration;

/// The bytes and the hash of a file.
fn file(number: u32) -> (ContentHash, Bytes) {
    let bytes = noise(number.to_string(), 1000);
    (ContentHash(*blake3::hash(&bytes).as_bytes()), bytes.into())
}

fn contents(homes: &Arc<dyn HomeClient>, decision: &Decision) -> Contents {
    let readers = Arc::new(Readers::new(Proc::at(Path::new("/proc"))));
    let activities = Arc::new(Activities::default());
    let reader = DatasetReader::new(Arc::clone(homes), readers, activities, Duration::MAX);
    reader.apply(&Arc::new(decision.clone()), 0);
    Contents::new(Arc::clone(homes), reader)
}

#[tokio::test]
async fn items_are_found_had_and_given_by_their_hash() {
    let (mut decision, catalog) = (decision(3), catalog());
    let cluster = cluster(&decision, &catalog);
    let homes = Arc::clone(&cluster) as Arc<dyn HomeClient>;
    let contents = contents(&homes, &decision);
    load(&cluster, &decision, &catalog, 3, 0).await;
    let hashes = vec![file(3).0, file(4).0, ContentHash([9; 32]), file(3).0];
    let look = async |decision: &Decision| {
        let residency = Residency::new(Arc::clone(&homes));
        let resident = residency
            .of(decision, &decision.datasets[0], &catalog)
            .await;
        let datasets = vec![(Arc::clone(&catalog), resident)];
        contents.look_up(datasets, hashes.clone()).await
    };
    assert_eq!(look(&decision).await, [true, false, false, true]);
    let found = contents.get(hashes.clone()).await.unwrap();
    assert_eq!(found, [Some(file(3).1), None, None, Some(file(3).1)]);

    // Item 4 is given, and is there from now on. Other bytes, and items that no manifest names, are refused. The
    // bytes alone tell whether they are others: the answer is the same for a hash that no manifest names.
    let given = vec![
        file(4),
        (file(5).0, file(6).1),
        file(1000),
        (file(1000).0, file(6).1),
        (file(5).0, Bytes::new()),
        (file(5).0, vec![0; (4 << 20) + 1].into()),
    ];
    use Inserted::{Kept, NoItem, OtherBytes, Unnamed};
    assert_eq!(
        contents.insert(None, given).await,
        [Kept, OtherBytes, Unnamed, OtherBytes, NoItem, NoItem]
    );
    assert_eq!(
        contents.get(vec![file(4).0, file(5).0]).await.unwrap(),
        [Some(file(4).1), None]
    );
    assert_eq!(look(&decision).await, [true, true, false, true]);

    // Of a private dataset nothing is given and nothing is taken.
    decision.serial.count += 1;
    decision.datasets[0].is_private = true;
    for (rank, home) in (0..).zip(&cluster.homes) {
        home.apply(&decision, rank, &format!("n{rank}"));
    }
    assert_eq!(contents.get(vec![file(3).0]).await.unwrap(), [None]);
    assert_eq!(
        contents.insert(None, vec![file(3), file(5)]).await,
        [Unnamed; 2]
    );
}

#[tokio::test]
async fn a_home_that_is_gone_holds_nothing() {
    let (decision, catalog) = (decision(2), catalog());
    let cluster = cluster(&decision, &catalog);
    let homes = Arc::clone(&cluster) as Arc<dyn HomeClient>;
    let contents = contents(&homes, &decision);
    load(&cluster, &decision, &catalog, 3, 0).await;
    let home = contents.reader.home_of_content(&file(3).0).unwrap();
    cluster.gone.lock().push(home);
    assert_eq!(contents.get(vec![file(3).0]).await.unwrap(), [None]);
    assert_eq!(
        contents.insert(None, vec![file(3)]).await,
        [Inserted::NoRoom]
    );
}

#[tokio::test]
async fn an_answer_is_bounded() {
    let (decision, catalog) = (decision(1), catalog());
    let cluster = cluster(&decision, &catalog);
    let homes = Arc::clone(&cluster) as Arc<dyn HomeClient>;
    let contents = contents(&homes, &decision);
    // The first part of entry 0, of 4 MiB.
    load(&cluster, &decision, &catalog, 0, 0).await;
    let part = catalog.piece_at(b"0", 5 << 20, 0).unwrap().content.unwrap();
    let count = usize::try_from(ANSWER_BYTES_MAX / (4 << 20)).unwrap();
    let found = contents.get(vec![part; count]).await.unwrap();
    assert!(found.iter().all(Option::is_some));
    assert_eq!(contents.get(vec![part; count + 1]).await, Err(TooLarge));
}
