use super::*;
use proptest::prelude::*;

fn parsed(line: &str) -> Result<Line, LineError> {
    let parsed = Line::parse(line.as_bytes(), 1000);
    // A line that arrives is judged alike. Its reader may see another fault first.
    let read = Line::read(line.as_bytes(), 1000);
    assert_eq!(read.ok(), parsed.clone().ok(), "{line}");
    parsed
}

fn submission(line: &str) -> Submission {
    match parsed(line) {
        Ok(Line::Submit(submission)) => *submission,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_example_of_the_documentation_is_a_submission() {
    let found = submission(
        r#"{"v":1,"op":"submit","tenant":"t","app":"daily","job":"app-1/sql-0","attempt":0,
        "dataset":"warehouse","expires_s":86400,"consume":"done","files":["a.parquet","b"],
        "tasks":[{"id":"scan1/0","in":[[0,0,2564892],1],"after":[]}],"later":{"fields":[1]}}"#,
    );
    let input = |file, part| Input { file, part };
    let range = InputPart::Range {
        offset: 0,
        len: 2_564_892,
    };
    let due = Submission {
        job: JobEvent {
            tenant: Some("t".into()),
            job: "app-1/sql-0".into(),
        },
        app: "daily".into(),
        attempt: 0,
        dataset: "warehouse".into(),
        expires_s: Some(86400.0),
        consume: Consume::Done,
        files: vec!["a.parquet".into(), "b".into()],
        tasks: {
            let mut tasks = Tasks::default();
            tasks.add_input(input(0, range));
            tasks.add_input(input(1, InputPart::Whole));
            tasks.end_task("scan1/0".into());
            tasks
        },
    };
    assert_eq!(found, due);
}

#[test]
fn tasks_may_name_their_inputs_themselves() {
    let found = submission(
        r#"{"v":1,"op":"submit","job":"j","dataset":"d","consume":"read","tasks":[
        {"id":"a","inputs":[{"path":"x"},{"path":"dir","recursive":true},{"path":"x","off":5,"len":7}]},
        {"id":"b","inputs":[{"path":"y","len":3},{"path":"x"}],"after":["a"]}]}"#,
    );
    assert_eq!(found.files, ["x".into(), "dir".into(), "y".into()]);
    let range = |offset, len| InputPart::Range { offset, len };
    let all = found.tasks.inputs().iter();
    let all: Vec<(u32, InputPart)> = all.map(|input| (input.file, input.part)).collect();
    let tasks: Vec<(&str, usize)> = found
        .tasks
        .iter()
        .map(|(id, inputs)| (id, inputs.len()))
        .collect();
    assert_eq!(tasks, [("a", 3), ("b", 2)]);
    assert_eq!(
        all,
        [
            (0, InputPart::Whole),
            (1, InputPart::Recursive),
            (0, range(5, 7)),
            (2, range(0, 3)),
            (0, InputPart::Whole),
        ]
    );
    assert_eq!(found.consume, Consume::Read);
}

#[test]
fn events_name_their_job_and_task() {
    let task = |tenant: Option<&str>| TaskEvent {
        job: JobEvent {
            tenant: tenant.map(Into::into),
            job: "j/1".into(),
        },
        task: "t/2".into(),
    };
    let done = parsed(r#"{"v":1,"op":"done","job":"j/1","task":"t/2"}"#);
    assert_eq!(done, Ok(Line::Done(task(None))));
    let fail = parsed(r#"{"v":1,"op":"taskfail","tenant":"u","job":"j/1","task":"t/2"}"#);
    assert_eq!(fail, Ok(Line::TaskFail(task(Some("u")))));
    let end = parsed(r#"{"op":"end","job":"j/1","v":1}"#);
    assert_eq!(end, Ok(Line::End(task(None).job)));
    assert_eq!(
        parsed(r#"{"v":1,"op":"attach","app":"x"}"#),
        Ok(Line::Attach)
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of faults")]
fn each_fault_has_its_own_message() {
    let of = |tasks: &str| {
        format!(r#"{{"v":1,"op":"submit","job":"j","dataset":"d","files":["a"],"tasks":{tasks}}}"#)
    };
    let nested = "[".repeat(200);
    for (line, said) in [
        (r#"{"v":2,"op":"end","job":"j"}"#.to_owned(), "version 2"),
        (
            r#"{"op":"end","job":"j"}"#.to_owned(),
            "does not say its version",
        ),
        (
            r#"{"v":1,"op":"start","job":"j"}"#.to_owned(),
            "\"start\" is not an operation",
        ),
        (r#"{"v":1,"op":"end"}"#.to_owned(), "names no job"),
        (
            r#"{"v":1,"op":"done","job":"j"}"#.to_owned(),
            "names no task",
        ),
        (
            r#"{"v":1,"op":"submit","job":"j"}"#.to_owned(),
            "names no dataset",
        ),
        (r#"{"v":1,"op":"end","job":"j""#.to_owned(), "EOF"),
        (
            r#"{"v":1,"op":"end","job":"j"} {}"#.to_owned(),
            "trailing characters",
        ),
        ("[1]".to_owned(), "a JSON object"),
        (of(&nested), "a task: an object"),
        (
            format!(r#"{{"v":1,"x":{nested}"#),
            "EOF while parsing a list",
        ),
        (
            of(r#"[{"id":"t","in":[1]}]"#),
            "reads file 1, and there are 1 files",
        ),
        (
            of(r#"[{"id":"t","in":[[0,1]]}]"#),
            "a range is [index, offset, length]",
        ),
        (
            of(r#"[{"id":"t","in":[[0,1,2,3]]}]"#),
            "a range is [index, offset, length]",
        ),
        (of(r#"[{"id":"t","in":[-1]}]"#), "an index into files"),
        (of(r#"[{"id":"","in":[0]}]"#), "names no task"),
        (
            of(r#"[{"id":"t","inputs":[{"path":"a"}]}]"#),
            "some inputs are paths",
        ),
        (
            of(r#"[{"id":"t","after":["u"]}]"#),
            "comes after \"u\", which is not listed",
        ),
        (
            of(r#"[{"id":"t","after":["u"]},{"id":"u","after":["t"]},{"id":"v"}]"#),
            "in a circle: t, u",
        ),
        (of(r#"[{"id":"t","after":["t"]}]"#), "in a circle: t"),
        (
            of(&format!(
                "[{}{{\"id\":\"t\"}}]",
                "{\"id\":\"t\"},".repeat(1000)
            )),
            "more than 1000 inputs",
        ),
        (
            of(&format!(r#"[{{"id":"t","in":[{}0]}}]"#, "0,".repeat(1000))),
            "more than 1000 inputs",
        ),
        (
            r#"{"v":1,"op":"submit","job":"j","dataset":"d","expires_s":-1}"#.to_owned(),
            "expires_s is -1",
        ),
        (
            r#"{"v":1,"op":"submit","job":"j","dataset":"d","consume":"all"}"#.to_owned(),
            "unknown variant",
        ),
        (
            r#"{"v":1,"op":"submit","job":"j","dataset":"d","files":[""]}"#.to_owned(),
            "a path is empty",
        ),
        (
            format!(r#"{{"v":1,"op":"end","job":"{}"}}"#, "j".repeat(600)),
            "cannot name a job",
        ),
        (
            r#"{"v":1,"op":"end","job":"a\nb"}"#.to_owned(),
            "cannot name a job",
        ),
    ] {
        let refused = parsed(&line).unwrap_err();
        let shown: String = line.chars().take(100).collect();
        assert!(refused.error.contains(said), "{shown}: {refused}");
        assert!(!refused.advice.is_empty());
    }
}

proptest! {
    #[test]
    fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
        let _any = Line::parse(&line, 10);
    }

    #[test]
    fn tasks_in_any_order_without_circle_are_accepted(edges in prop::collection::vec((0_usize..30, 0_usize..30), 0..60)) {
        // A task comes after tasks of lower numbers only, and they are listed the other way round.
        let tasks = (0..30).rev().map(|at| {
            let after = edges.iter().filter(|(a, b)| at == *a.max(b) && a != b);
            let after: Vec<String> = after.map(|(a, b)| format!("\"t{}\"", a.min(b))).collect();
            format!(r#"{{"id":"t{at}","after":[{}]}}"#, after.join(","))
        });
        let tasks: Vec<String> = tasks.collect();
        let line = format!(r#"{{"v":1,"op":"submit","job":"j","dataset":"d","tasks":[{}]}}"#, tasks.join(","));
        prop_assert!(Line::parse(line.as_bytes(), 1000).is_ok());
    }
}
