//! Studies and their figures.

use super::*;
use crate::chart::{stack, tests::assert_texts_fit};

#[test]
fn a_study_has_a_row_for_each_cache_and_policy() {
    let policies = [Policy::Lrc, Policy::Lru];
    let study = &studies(
        &["windows"],
        2,
        &plan(&policies, &["5%", "200%"], &[0.5, 0.99]),
    )[0];
    assert_eq!(
        (study.rows.len(), study.spaces.len(), study.jobs),
        (4, 4, 47)
    );
    let [narrow, narrow_lru, wide, wide_lru] = &study.rows[..] else {
        panic!("{:?}", study.rows)
    };
    assert!(narrow.over_lru > 0.1 && narrow.over_lru_min <= narrow.over_lru);
    assert!(narrow.to_lru.unwrap() > 1.0 && narrow.storage_bytes < narrow_lru.storage_bytes);
    assert_eq!(
        (narrow_lru.over_lru, wide.over_lru, wide.evictions),
        (0.0, 0.0, 0.0)
    );
    assert_eq!(wide.hit_ratio, wide_lru.hit_ratio);
    assert!((narrow.cache_share - 0.05).abs() < 1e-6);
    assert_eq!(study.spaces[1].to_lru, Some(1.0));
    assert_eq!(study.spaces[2].bytes, None, "first reads always miss");
    assert_eq!(study.kept_online(), None, "lrc-offline was not run");
    let json = serde_json::to_value(study).unwrap();
    assert_eq!(json["rows"][0]["policy"], "lrc");
    assert_eq!(json["ranks"][0]["metric"], "count");
    assert!(json["inactive"][0]["samples"][0]["progress"].is_number());
}

/// A space is the least size that is enough: one per cent less is not.
#[test]
fn a_space_is_the_least_that_is_enough() {
    let mut pipeline = pipelines("connected-components", 1).remove(0);
    for policy in [Policy::Lru, Policy::LrcOffline] {
        let space = space_for(&mut pipeline, policy, 0.7).unwrap().unwrap();
        let mut ratio = |cache| run(&mut pipeline, policy, cache).unwrap().hit_ratio();
        assert!(
            ratio(space) >= 0.7 && ratio(space - space / 90) < 0.7,
            "{policy}"
        );
    }
}

#[test]
fn every_figure_is_drawn() {
    let policies = [Policy::Lrc, Policy::Lru];
    let plan = plan(&policies, &["100MB", "1GB", "50GB"], &[]);
    let mut all = studies(&["pregel", "scanner"], 1, &plan);
    for tenants in [2, 4] {
        let workload = Workload::named(TENANTS)
            .unwrap()
            .with_tenants(tenants)
            .unwrap();
        all.push(study(&mut [workload.pipeline(1).unwrap()], &plan).unwrap());
    }
    assert_eq!(all[3].name(), "tenants, 4");
    assert!(Workload::named("pregel").unwrap().with_tenants(4).is_none());
    let charts = figures(&all);
    let notes: Vec<_> = charts.iter().map(|chart| chart.note.as_str()).collect();
    let notes = notes.join("\n");
    for figure in [2, 3, 5, 8, 10, 11] {
        assert!(notes.contains(&format!("Figure {figure} of")), "{notes}");
    }
    let files: Vec<_> = charts.iter().map(|chart| chart.file.as_str()).collect();
    let hits = ["hit-ratio-pregel", "hit-ratio-scanner"];
    assert_eq!(files[..3], ["inactive", "progress", "ranks"]);
    assert_eq!(files[3..5], hits);
    assert_eq!(files[5..], ["gain-by-cache", "gain-by-tenants"]);
    for chart in &charts {
        assert!(
            chart.heading().ends_with("no run times)"),
            "{}",
            chart.heading()
        );
        assert_texts_fit(&chart.svg().unwrap());
    }
    assert!(
        charts
            .iter()
            .all(|chart| chart.series.iter().all(|one| one.points.len() > 1))
    );
    let image = stack(&charts).unwrap();
    assert!(!image.contains("NaN") && image.contains("hit ratio divided by that of LRU"));
}
