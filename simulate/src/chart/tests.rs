use super::*;

fn chart() -> Chart {
    let series = |name: &str, points: &[(f64, f64)]| Series {
        name: name.into(),
        points: points.to_vec(),
        dots: true,
        ..Series::default()
    };
    Chart {
        title: "a < b".into(),
        scope: "without c".into(),
        x: "hours".into(),
        y: "MB/s".into(),
        series: vec![
            series("SiloD & Co", &[(0.0, 10.0), (1.0, 373.0)]),
            series("none", &[(0.0, f64::NAN)]),
        ],
        note: "one\ntwo".into(),
        ..Chart::default()
    }
}

/// A text of an image, with the range that it covers on each axis.
#[derive(Debug)]
struct Shown {
    text: String,
    across: (f64, f64),
    down: (f64, f64),
}

fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    let start = format!(" {name}=\"");
    let rest = tag.split_once(&start).map_or("", |(_, rest)| rest);
    rest.split_once('"').map_or("", |(value, _)| value)
}

/// Returns the texts of an image with their estimated places. Attributes that are missing have the values of
/// the image, or those that SVG defines.
fn texts(svg: &str) -> Vec<Shown> {
    let parts = svg.split("<text").skip(1);
    let shown = parts.map(|part| {
        let (tag, rest) = part.split_once('>').unwrap();
        let text = rest.split_once("</text>").unwrap().0.trim();
        let text = text.replace("&lt;", "<").replace("&amp;", "&");
        let of = |name| attribute(tag, name).parse::<f64>().ok();
        let size = of("font-size").or(attribute(svg, "font-size").parse().ok());
        let (x, y, size) = (of("x").unwrap(), of("y").unwrap(), size.unwrap());
        let is_bold = attribute(tag, "font-weight") == "bold";
        let wide = width(&text, size) * if is_bold { 1.1 } else { 1.0 };
        let along = match attribute(tag, "text-anchor") {
            "start" | "" => (0.0, wide),
            "middle" => (-wide / 2.0, wide / 2.0),
            "end" => (-wide, 0.0),
            other => panic!("{other:?}"),
        };
        if attribute(tag, "transform").starts_with("rotate(270") {
            let down = (y - along.1, y - along.0);
            let across = match attribute(tag, "dy") {
                "" => (x - size, x),
                _ => (x, x + size),
            };
            return Shown { text, across, down };
        }
        assert_eq!(attribute(tag, "transform"), "", "{tag}");
        let across = (x + along.0, x + along.1);
        let down = match attribute(tag, "dy") {
            "0.76em" => (y, y + size),
            "0.5ex" => (y - size * 0.5, y + size * 0.5),
            _ => (y - size, y),
        };
        Shown { text, across, down }
    });
    shown.collect()
}

/// Checks that the texts of one image are inside it.
#[track_caller]
pub(crate) fn assert_texts_fit(svg: &str) {
    let of = |name| attribute(svg, name).parse::<f64>().unwrap();
    let (right, bottom) = (of("width"), of("height"));
    let found = texts(svg);
    assert!(!found.is_empty());
    for shown in found {
        let inside = |(from, to): (f64, f64), end: f64| from >= 0.0 && to <= end;
        assert!(
            inside(shown.across, right) && inside(shown.down, bottom),
            "{shown:?} is not inside {right} × {bottom}"
        );
    }
}

#[test]
fn charts_contain_their_texts_and_points() {
    let lines = chart().svg().unwrap();
    for wanted in [
        "a &lt; b (without c)",
        "SiloD &amp; Co",
        "hours",
        "MB/s",
        "400",
        "two",
    ] {
        assert!(lines.contains(wanted), "{wanted}: {lines}");
    }
    // Two points and the one in the legend, each on white.
    assert_eq!(lines.matches("<circle").count(), 6);
    let mut bars = chart();
    bars.series.pop();
    bars.groups = vec!["fifo".into(), "sjf".into()];
    let bars = bars.svg().unwrap();
    assert_eq!(
        bars.matches("<rect").count(),
        4,
        "two bars, the ground, the legend"
    );
    assert!(bars.contains("sjf") && bars.contains("373"), "{bars}");
    let mut logarithmic = chart();
    logarithmic.logarithmic = true;
    let logarithmic = logarithmic.svg().unwrap();
    assert_eq!(
        logarithmic.matches("<circle").count(),
        4,
        "0 has no logarithm"
    );
    for text in [lines, bars, logarithmic, Chart::default().svg().unwrap()] {
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}

#[test]
fn texts_are_inside_the_image() {
    let mut long = chart();
    long.title = "The title of a chart that is drawn for a reader of tables ".repeat(3);
    long.note = "A note that explains the numbers of the chart ".repeat(6);
    long.series[0].name = "a name of a series ".repeat(9);
    long.series[1].name = "x".repeat(300);
    for (x, y) in [(1e5, 1e3), (8300.0, 0.01), (1e6, 1e6), (0.4, 123_456_789.0)] {
        long.series[1].points = vec![(1.0, 0.001), (x, y)];
        for logarithmic in [false, true] {
            long.logarithmic = logarithmic;
            assert_texts_fit(&long.svg().unwrap());
        }
    }
    long.logarithmic = false;
    long.groups = vec!["FIFO".into(), "Gavel".into()];
    assert_texts_fit(&long.svg().unwrap());
    assert_texts_fit(&chart().svg().unwrap());
}

/// The charts of the docs. The benchmarks draw all but the first with code of their own.
const IN_DOCS: [&str; 7] = [
    "cold-start",
    "accuracy-digits",
    "accuracy-names",
    "chunks",
    "pipelines-sizes",
    "timeline-hits",
    "timeline-misses",
];

#[test]
fn texts_of_the_charts_in_the_docs_are_inside_them() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for name in IN_DOCS {
        let path = docs.join(format!("{name}.svg"));
        assert_texts_fit(&std::fs::read_to_string(path).unwrap());
    }
}

#[test]
fn labels_do_not_overlap() {
    let mut many = chart();
    many.series = (0..9)
        .map(|place| Series {
            name: format!("system {place}"),
            points: vec![(0.0, 1.0), (1e5, 1e5)],
            ..Series::default()
        })
        .collect();
    for logarithmic in [false, true] {
        many.logarithmic = logarithmic;
        let found = texts(&many.svg().unwrap());
        for (at, one) in found.iter().enumerate() {
            for other in &found[at + 1..] {
                let apart = |one: (f64, f64), other: (f64, f64)| {
                    one.1 <= other.0 + 1.0 || other.1 <= one.0 + 1.0
                };
                assert!(
                    apart(one.across, other.across) || apart(one.down, other.down),
                    "{one:?} overlaps {other:?}"
                );
            }
        }
    }
}

#[test]
fn each_power_of_ten_has_a_label() {
    let mut wide = chart();
    wide.logarithmic = true;
    wide.series[0].points = vec![(1.0, 0.002), (1e5, 900.0)];
    let found = texts(&wide.svg().unwrap());
    for label in [
        "0.001", "0.01", "0.1", "1", "10", "100", "1,000", "10,000", "100,000",
    ] {
        assert!(
            found.iter().any(|shown| shown.text == label),
            "{label}: {found:?}"
        );
    }
}

#[test]
fn axes_reach_the_wanted_values() {
    let mut far = chart();
    far.reach = (90.0, 700.0);
    let found = texts(&far.svg().unwrap());
    for label in ["90", "700"] {
        assert!(
            found.iter().any(|shown| shown.text == label),
            "{label}: {found:?}"
        );
    }
}

/// A line under an equal one shows in the gaps of that one, and their shapes are at different points.
#[test]
fn equal_curves_are_both_visible() {
    let points: Vec<(f64, f64)> = (0..100).map(|at| (f64::from(at), 5.0)).collect();
    let series = |name: &str| Series {
        name: name.into(),
        points: points.clone(),
        ..Series::default()
    };
    let mut both = chart();
    both.series = vec![series("one"), series("other")];
    let svg = both.svg().unwrap();
    // Circles and squares, without those of the legend.
    let circles: Vec<&str> = svg.split("<circle").skip(1).collect();
    let centres: Vec<f64> = circles[..circles.len() - 2]
        .iter()
        .map(|tag| attribute(tag, "cx").parse().unwrap())
        .collect();
    assert!(centres.len() >= 2 * SHAPES_ON_CURVE, "{svg}");
    let squares: Vec<&str> = svg.split("<polygon").skip(1).collect();
    assert!(squares.len() > SHAPES_ON_CURVE, "{svg}");
    for square in &squares[..squares.len() - 1] {
        let first = attribute(square, "points").split_once(',').unwrap().0;
        let centre = first.trim().parse::<f64>().unwrap() + 4.0;
        assert!(
            centres.iter().all(|at| (at - centre).abs() > 10.0),
            "{square}"
        );
    }
    assert_ne!(Mark::of(0, false).dash, Mark::of(1, false).dash);
    let dashed = |colour: &str| svg.matches(&format!("stroke=\"{colour}\"")).count();
    assert!(dashed("#D55E00") > 10 * dashed("#0072B2"), "{svg}");
}

#[test]
fn charts_are_stacked_in_one_image() {
    let (first, second) = (chart(), Chart::default());
    let stacked = stack(&[first.clone(), second.clone()]).unwrap();
    let (height, below) = (first.height() + second.height(), first.height());
    let head = format!("<svg width=\"860\" height=\"{height}\"");
    assert!(stacked.starts_with(&head), "{stacked}");
    assert_eq!(stacked.matches("<svg ").count(), 3);
    assert_eq!(stacked.matches("</svg>").count(), 3);
    let place = format!("<svg y=\"{below}\" ");
    assert!(stacked.contains(&place), "{stacked}");
}

#[test]
fn axes_end_at_round_numbers() {
    assert_eq!(ceiling([373.0, 2.0].into_iter()), 400.0);
    assert_eq!(ceiling([1.0].into_iter()), 1.0);
    assert_eq!(ceiling([0.0].into_iter()), 1.0);
    let found = decades([0.03, 8300.0].into_iter());
    assert!((found.start - 0.01).abs() < 1e-6 && found.end == 10_000.0);
    let found = decades([5.0, 0.0].into_iter());
    assert!((found.start - 1.0).abs() < 1e-6 && found.end == 10.0);
    assert_eq!(decades([].into_iter()), 1.0..10.0);
}
