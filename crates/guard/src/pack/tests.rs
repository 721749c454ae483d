use super::*;

const HEADER: &str = "name = \"p\"\nversion = \"3\"\nabout = \"a pack\"\n";

#[track_caller]
fn refused(header: &str, rules: &str, want: &str) {
    assert_eq!(Pack::read(header, rules, "").unwrap_err().to_string(), want);
}

#[test]
fn a_pack_that_cannot_be_read_is_refused_with_the_reason() {
    refused("", "", "cannot read the header of a pack: missing field `name`");
    refused("name = \"p\"", "", "cannot read the header of a pack: missing field `version`");
    refused(
        &HEADER.replace("\"p\"", "\"\""),
        "",
        "cannot read the header of a pack: `name` and `version` may not be empty",
    );
    refused(
        &HEADER.replace("\"p\"", "\"guard\""),
        "",
        "cannot read the header of a pack: `guard` is the name of what is built in",
    );
    let field = "cannot read the header of a pack: unknown field `colour`, expected one of `name`, `version`, `about`, `effective_from`";
    refused(&format!("{HEADER}colour = 1\n"), "", field);
    refused(
        &format!("{HEADER}effective_from = \"2026-02-29\"\n"),
        "",
        "cannot read the header of a pack: `effective_from` needs a day such as `2026-08-01`, got `2026-02-29`",
    );
    refused(
        HEADER,
        "\n\nforbid (principal, action resource);",
        "cannot read the rules of pack `p`: line 3: unexpected token `resource`",
    );
    refused(
        HEADER,
        "@id(\"a\") @reason(\"x\") forbid (principal == ?principal, action, resource);",
        "cannot read the rules of pack `p`: needed rules without slots, got `?principal` or `?resource`",
    );
}

#[test]
fn a_rule_that_does_not_say_what_it_must_is_refused() {
    let head = |rule: &str| format!("cannot take rule `{rule}` of pack `p`: needed ");
    let any = "(principal, action, resource);";
    for (annotations, verb, rule, want) in [
        ("@reason(\"x\")", "forbid", "no. 1", "`@id(\"…\")`, got none"),
        ("@id(\"\") @reason(\"x\")", "forbid", "no. 1", "`@id(\"…\")`, got none"),
        ("@id(\"a b\") @reason(\"x\")", "forbid", "a b", "an id of letters, digits, `-`, `_` and `.`, got `a b`"),
        ("@id(\"a\")", "forbid", "a", "`@reason(\"…\")`, got none"),
        ("@id(\"a\") @reason(\"x\") @efect(\"ask\")", "forbid", "a", "annotations that mean something, got `@efect`"),
        ("@id(\"a\") @reason(\"x\") @effect(\"ask\")", "permit", "a", "`allow` as the effect of a permit, got `ask`"),
        (
            "@id(\"a\") @reason(\"x\") @effect(\"allow\")",
            "forbid",
            "a",
            "`deny`, `defer`, `ask` or `modify` as the effect of a forbid, got `allow`",
        ),
        (
            "@id(\"a\") @reason(\"x\") @approvals(\"1 person\")",
            "forbid",
            "a",
            "`@approvals` only where the effect is to ask, got `1 person`",
        ),
        (
            "@id(\"a\") @reason(\"x\") @effect(\"ask\") @approvals(\"some people\")",
            "forbid",
            "a",
            "`@approvals(\"COUNT people|approvers [of ROLE, ROLE] [within SECONDS s]\")`, got `some people`",
        ),
        (
            "@id(\"a\") @reason(\"x\") @effect(\"modify\")",
            "forbid",
            "a",
            "`@rewrite(\"…\")` where the effect is to modify, got none",
        ),
        (
            "@id(\"a\") @reason(\"x\") @rewrite(\"drop x\")",
            "forbid",
            "a",
            "`@rewrite` only where the effect is to modify, got `drop x`",
        ),
        (
            "@id(\"a\") @reason(\"x\") @effect(\"modify\") @rewrite(\"cap x\")",
            "forbid",
            "a",
            "`cap ARGUMENT NUMBER`, got `cap x`",
        ),
    ] {
        refused(HEADER, &format!("{annotations} {verb} {any}"), &(head(rule) + want));
    }
    refused(
        HEADER,
        &format!("@id(\"a\") @reason(\"x\") forbid {any} @id(\"a\") @reason(\"x\") permit {any}"),
        "cannot tell two rules apart: `a` is in pack `p` and again in pack `p`",
    );
}

#[test]
fn a_rule_carries_what_it_says_of_itself() {
    let rules = "@id(\"a\") @reason(\"x\") permit (principal, action, resource);
        @id(\"b\") @version(\"9\") @clause(\"GDPR Art. 22\") @effect(\"ask\") @approvals(\"3 approvers of ops\") @reason(\"y\")
        forbid (principal, action, resource);";
    let pack = Pack::read(HEADER, rules, "").unwrap();
    assert_eq!(pack.rule_ids().collect::<Vec<_>>(), ["a", "b"]);
    let (a, b) = (&pack.rules[0], &pack.rules[1]);
    assert_eq!((a.version.as_str(), a.effect, a.clause.as_deref()), ("3", Decision::Allow, None));
    assert_eq!((b.version.as_str(), b.effect, b.clause.as_deref()), ("9", Decision::Ask, Some("GDPR Art. 22")));
    let need = Need { count: 3, roles: ["ops".to_owned()].into(), people: false, lifetime_s: 900 };
    assert_eq!(b.need, Some(need));
}

#[test]
fn approvals_are_read_as_they_are_written_or_not_at_all() {
    let people = |count, roles: &[&str], lifetime_s| {
        Some(Need { count, roles: roles.iter().map(|r| (*r).to_owned()).collect(), people: true, lifetime_s })
    };
    assert_eq!(need("1 person"), people(1, &[], 900));
    assert_eq!(need("2 people of legal, privacy within 3600 s"), people(2, &["legal", "privacy"], 3600));
    assert_eq!(need("1 person within 60s"), people(1, &[], 60));
    for bad in [
        "",
        "person",
        "0 people",
        "-1 people",
        "1 people of",
        "1 people of a b",
        "1 person within 0 s",
        "1 person within soon",
        "1 robot",
    ] {
        assert_eq!(need(bad), None, "`{bad}`");
    }
}

#[test]
fn days_are_counted_as_calendars_do() {
    for (day, want) in [
        ("1970-01-01", Some(0)),
        ("1970-03-01", Some(59 * 86_400)),
        ("2000-02-29", Some(951_782_400)),
        ("2026-08-01", Some(1_785_542_400)),
        ("2100-03-01", Some(4_107_542_400)),
        ("2100-02-29", None),
        ("1969-12-31", None),
        ("2026-13-01", None),
        ("2026-00-01", None),
        ("2026-04-31", None),
        ("2026-4-01", None),
        ("2026-08-01-", None),
        ("today", None),
    ] {
        assert_eq!(seconds(day), want, "`{day}`");
    }
}

#[test]
fn what_is_laid_over_may_restrict_and_replaces_nothing() {
    let any = "(principal, action, resource);";
    let one = |name: &str, id: &str, verb: &str| {
        Pack::read(
            &HEADER.replace("\"p\"", &format!("\"{name}\"")),
            &format!("@id(\"{id}\") @reason(\"x\") {verb} {any}"),
            "",
        )
        .unwrap()
    };
    let ground = || Packs::new([one("ground", "a", "permit")]).unwrap();
    assert_eq!(
        ground().tighten(one("own", "b", "permit")).unwrap_err().to_string(),
        "cannot tighten rules by pack `own`: needed rules that restrict, got `b`, which permits"
    );
    assert_eq!(
        ground().tighten(one("own", "a", "forbid")).unwrap_err().to_string(),
        "cannot tell two rules apart: `a` is in pack `ground` and again in pack `own`"
    );
    assert_eq!(ground().tighten(one("own", "b", "forbid")).unwrap().iter().count(), 2);
    assert!(Packs::new([one("x", "a", "permit"), one("y", "a", "forbid")]).is_err());
}
