//! The words that are searched for: plain English nouns, verbs and adjectives of five letters, picked for this game.

pub(crate) const WORDS: &str = "
acorn actor adopt agent agree alarm album alert alley amber angle ankle apple apron arena arrow aside attic audio
bacon badge bagel baker basic basin beach beard beast berry birch black blade blank blaze blend blink block bloom
board boost booth brain brake brand brass brave bread break brick bride brief bring brisk broad brook broom brown
brush build bunch cabin cable camel candy canoe cargo carve catch cause cedar chain chair chalk charm chart chase
cheap cheek cheer chess chest chief child chime choir chord civic claim clamp class clean clear clerk cliff climb
cloak clock cloth cloud clown coach coast cocoa coral couch count court cover crane crash crate cream creek crisp
cross crowd crown crumb crust curve cycle daily dairy dance delay depth diary digit diner ditch dough dozen draft
drain drama drawn dream dress drift drill drink drive drums eager eagle early earth easel elbow empty enjoy entry
equal error essay event exact extra fable faith fancy feast fence ferry fever fiber field fight final flame flask
fleet float flock flood floor flour flute focus force forge found frame fresh front frost fruit fudge giant glade
glass gleam globe glove goose grain grape graph grass gravy great green greet grill group grove guard guess guest
guide habit happy harsh haste hatch hazel heart heavy hedge hello hinge hobby honey horse hotel house human humor
ideal image index ivory jelly jewel joint jolly juice jumbo kayak kiosk knife knock label ladle large laser latch
laugh layer learn lemon level lever light linen liver lodge logic loyal lucky lunar lunch magic major mango maple
march marsh match mayor medal melon mercy merit metal meter mimic minor model money month moose motor mount mouse
mouth movie mural music nerve never night noble noise north novel nurse oasis ocean offer olive onion opera orbit
order organ otter outer owner paint panel paper party pasta paste patch pause peach pearl pedal penny perch phone
photo piano pilot pinch pitch pixel pizza place plain plane plank plant plate plaza point polar porch pound power
press price pride prime print prize proof proud pulse pupil quail queen quest quick quiet quilt quota quote radar
radio rainy ranch rapid raven reach ready relay reply rider ridge river roast robin robot rocky rough round route
royal ruler rural salad salsa sandy sauce scale scarf scene scent scoop scope score scout screw serve shade shark
sharp sheep sheet shelf shell shine shirt shore short shout skate skill skirt slate sleep slice slide slope small
smart smile smoke snack snail snake solar solid sound south space spark spell spice spike spoon sport spray squad
stack staff stage stair stamp stand steam steel steep stick still stone stool store storm story stove straw sugar
sunny swamp sweet swing sword table taste teach thank theme thick thorn thumb tiger timer toast token torch total
touch towel tower trace track trade trail train treat trend tribe trick truck trunk trust tulip tunic tutor twist
uncle under union unity upper urban usual valid value valve vapor vault video vigor visit vital vivid vocal voice
voter wagon waist watch water whale wheat wheel white whole widen windy witty world worth woven yacht yield young
youth zebra
";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_word_stands_once_in_order_and_has_five_letters() {
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        assert_eq!(
            words.iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>(),
            words.iter().collect::<Vec<_>>()
        );
        assert!(words.iter().all(|w| w.len() == 5 && w.bytes().all(|b| b.is_ascii_lowercase())));
        assert!(words.len() >= 500, "{}", words.len());
    }
}
