//! The shipped packs: every rule has a call that it stops and one that it lets through, under the packs as they are laid.

use surefoot_guard::{Decision, Guard, GuardError, Packs, Scope, Shipped};

/// The packs as they are laid up to one: a ground by itself, and the others over `baseline`.
fn laid(upto: Shipped) -> Result<Packs, GuardError> {
    if upto == Shipped::Open {
        return Packs::new([upto.pack()?]);
    }
    let over = [Shipped::RedLines, Shipped::Workspace].into_iter().filter(|pack| *pack <= upto);
    let ground = Packs::new([Shipped::Baseline.pack()?])?;
    over.map(Shipped::pack).try_fold(ground, |packs, pack| packs.tighten(pack?))
}

#[test]
fn every_rule_of_every_shipped_pack_stops_and_lets_through_what_its_cases_say() {
    for shipped in Shipped::ALL {
        let faults = shipped.cases().unwrap().check(&laid(*shipped).unwrap(), shipped.name()).unwrap();
        assert!(
            faults.is_empty(),
            "{}:\n{}",
            shipped.name(),
            faults.iter().map(|f| format!("{f}\n")).collect::<String>()
        );
    }
}

#[test]
fn what_a_pack_lets_through_the_packs_laid_over_it_may_only_restrict() {
    // The same cases with all packs: nothing that was stopped passes, as laying a pack over others may only restrict.
    for shipped in [Shipped::Baseline, Shipped::RedLines] {
        let faults = shipped.cases().unwrap().check(&laid(Shipped::Workspace).unwrap(), shipped.name()).unwrap();
        let order = |word: &str| Decision::parse(word.trim_matches('`').split('`').next().unwrap_or_default());
        for fault in faults {
            let (needed, got) = (order(&fault.needed), order(&fault.got));
            assert!(needed.is_some() && got >= needed, "{fault}");
        }
    }
}

#[test]
fn shipped_packs_are_found_by_name_and_say_who_they_are() {
    for shipped in Shipped::ALL {
        assert_eq!(Shipped::named(shipped.name()), Some(*shipped));
        assert_eq!(shipped.pack().unwrap().header().name, shipped.name());
    }
    assert_eq!(Shipped::named("Baseline"), None);
    let guard = Guard::new(&laid(Shipped::Workspace).unwrap(), &[], &Scope::default()).unwrap();
    let rules = guard.rules();
    let of = |pack: Shipped| rules.iter().filter(|info| info.rule.pack == pack.name()).count();
    assert!(of(Shipped::Workspace) >= 40 && of(Shipped::RedLines) >= 20, "{}", rules.len());
    let cedar: Vec<String> =
        Shipped::ALL.iter().flat_map(|s| s.pack().unwrap().rule_ids().map(str::to_owned).collect::<Vec<_>>()).collect();
    let applies = rules.iter().filter(|info| info.applies && cedar.contains(&info.rule.id)).count();
    assert_eq!(applies, 0, "without tools, no Cedar rule applies");
    for pack in [Shipped::RedLines, Shipped::Workspace] {
        assert!(
            Packs::new([Shipped::Open.pack().unwrap()]).unwrap().tighten(pack.pack().unwrap()).is_ok(),
            "only restricts"
        );
    }
}
