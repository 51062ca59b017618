"""Properties of a wiki: language and namespaces, as its dump states them, and prefixes of links to other wikis."""

import html
import re
from dataclasses import dataclass

# Even numbers are kinds of pages; each following odd number is the talk namespace of that kind.
_CANONICAL = {-2: "Media", -1: "Special", 1: "Talk"} | {
    2 * number + is_talk: name + " talk" * is_talk
    for number, name in enumerate("User Project File MediaWiki Template Help Category".split(), 1)
    for is_talk in (0, 1)
}
"""Number to English name; valid in every edition in addition to its translated names."""
_HIDDEN = frozenset({-2, 6, 14})
"""Media, File, Category: links to these namespaces are not part of the running text."""
_TEMPLATE = 10
INTERLANGUAGE = frozenset(
    (
        "ab ace ady af ak als am an ang ar arc ary arz as ast atj av avk awa ay az azb ba ban bar bat-smg bcl be "
        "be-tarask be-x-old bg bh bi bjn bm bn bo bpy br bs bug bxr ca cbk-zam cdo ce ceb ch cho chr chy ckb co cr "
        "crh cs csb cu cv cy da de din diq dsb dty dv dz ee el eml en eo es et eu ext fa ff fi fiu-vro fj fo fr frp "
        "frr fur fy ga gag gan gcr gd gl glk gn gom gor got gu gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz ia "
        "id ie ig ii ik ilo inh io is it iu ja jam jbo jv ka kaa kab kbd kbp kg ki kj kk kl km kn ko koi kr krc ks "
        "ksh ku kv kw ky la lad lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv mad mai map-bms mdf mg mh mhr mi "
        "min mk ml mn mni mnw mr mrj ms mt mus mwl my myv mzn na nah nap nds nds-nl ne new ng nia nl nn no nov nqo "
        "nrm nso nv ny oc olo om or os pa pag pam pap pcd pdc pfl pi pih pl pms pnb pnt ps pt qu rm rmy rn ro roa-rup "
        "roa-tara ru rue rw sa sah sat sc scn sco sd se sg sh shi shn si simple sk skr sl sm smn sn so sq sr srn ss "
        "st stq su sv sw szl szy ta tay tcy te tet tg th ti tk tl tn to tpi tr trv ts tt tum tw ty tyv udm ug uk ur "
        "uz ve vec vep vi vls vo wa war wo wuu xal xh xmf yi yo yue za zea zh zh-classical zh-min-nan zh-yue zu"
    ).split()
)
"""Language codes: a link with such a prefix is shown in the margin instead of the text."""

INTERWIKI = frozenset(
    (
        "w wikt wiktionary wikipedia s wikisource q wikiquote b wikibooks n wikinews v wikiversity voy wikivoyage "
        "species wikispecies commons c m meta d wikidata mw mediawikiwiki foundation doi arxiv imdbtitle imdbname"
    ).split()
)
"""Prefixes of other wikis. The visible text of a link excludes them."""


@dataclass(frozen=True)
class Site:
    """One Wikipedia edition."""

    language: str
    """Language code, such as "en"; "" if the dump does not state it."""
    namespaces: dict[int, tuple[str, ...]]
    """Number of a namespace to its casefolded names."""

    @property
    def hidden_prefixes(self) -> frozenset[str]:
        """Casefolded prefixes of links that are not part of the running text."""
        return frozenset(name for number in _HIDDEN for name in self.namespaces.get(number, ()))

    @property
    def template_prefixes(self) -> frozenset[str]:
        """Casefolded prefixes that a template's name may have."""
        return frozenset(self.namespaces.get(_TEMPLATE, ()))


def parse_site(head: str) -> Site:
    """Parse the part of a dump before its first page."""
    language = re.search(r'<mediawiki[^<>]*\bxml:lang="([^"]*)"', head)
    names = {number: {name.casefold()} for number, name in _CANONICAL.items()}
    names[6].add("image")
    for key, name in re.findall(r'<namespace key="(-?\d+)"[^<>]*>([^<]*)</namespace>', head):
        names.setdefault(int(key), set()).add(html.unescape(name).casefold())
    return Site(
        language[1] if language else "",
        {number: tuple(sorted(known)) for number, known in sorted(names.items())},
    )
