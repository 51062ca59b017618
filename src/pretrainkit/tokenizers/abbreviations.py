"""Common abbreviations of seven languages, which Punkt knows before it learns from a text.

The abbreviations that Punkt learns from novels lack `U.S.`, `Inc.` and `Jan.`. These are lists, not models: words in
lower case without their last period. Sources: Unicode CLDR 44, `segments` (SentenceBreak suppressions) and the short
names of months and days, without those that are also ordinary words (`sun`, `out`). For English also chapter 9 of the
Style Manual of the U.S. Government Publishing Office (2016): titles, states, companies.

A language is recognized by its ten most common words, which make up a tenth to a quarter of any text in it.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"[^\W\d_]+")
_MIN_SHARE, _MIN_LEAD, _MIN_FOUND = 0.08, 1.4, 8
"""A text is in a language if at least this share of its words is among the ten most common words of the language, the
share is this many times that of any other language, and this many of the ten words occur. (Languages share two or three
short words.)"""


@dataclass(frozen=True)
class Abbreviations:
    """Abbreviations and common words of one language."""

    commonest: frozenset[str]
    """The ten most common words, which identify the language."""
    titles: frozenset[str]
    """Abbreviations before names. They never end a sentence."""
    others: frozenset[str]
    """Abbreviations that end a sentence only before one of `starters` or a learned sentence starter."""
    before_numbers: frozenset[str]
    """Abbreviations that end no sentence before a number. Elsewhere they may be ordinary words."""
    starters: frozenset[str]
    """Words that begin sentences but not names."""
    after_numbers: frozenset[str]
    """No sentence ends between a number with a period and one of these words."""


def _abbreviations(
    *, commonest: str, titles: str, others: str, before_numbers: str, starters: str, after_numbers: str = ""
) -> Abbreviations:
    groups = (commonest, titles, others, before_numbers, starters, after_numbers)
    return Abbreviations(*(frozenset(words.split()) for words in groups))


LANGUAGES = {
    "en": _abbreviations(
        commonest="the of and to in is was that for with",
        titles=(
            "adm brig capt cmdr col cpl dr gen gov hon lt maj messrs mlle mme mr mrs ms msgr mt pfc pres prof pvt rep "
            "reps rev sen sens sgt st ste supt"
        ),
        others=(
            "esq jr sr jan feb apr aug sep sept oct nov dec mon tue tues thu thur thurs fri ala ariz calif colo conn "
            "d.c del fla ga kan kans ky md mich minn mont n.c n.d neb nebr nev n.h n.j n.m n.y okla oreg r.i s.c s.d "
            "tenn tex va vt w.va wis wyo assn bros co corp cos inc ltd l.p n.v s.a b.v a.g s.p.a a.d a.m b.a b.c b.s "
            "e.u l.a m.a m.b.a m.d m.p p.m ph.d p.o p.s u.k u.n u.s u.s.a u.s.s.r u.s.c approx ave blvd bldg ca cf "
            "dept ed eds e.g est etc ext ft hwy i.e ibid incl intl lb lbs misc oz pt rd ref sq tel univ viz vs yr yrs"
        ),
        before_numbers="no nos vol vols fig figs p pp art ch sec para nr",
        starters=(
            "a after all also although an and another are as at because before both but by did do during each even "
            "every few first for from had has have he her here his how however i if in indeed instead is it its just "
            "last later like many may meanwhile more most much my neither no nobody nor not nothing now of on once "
            "one only or other others our over perhaps she should since so some soon still such than that the their "
            "them then there these they this those though three through thus to today two under unlike until was we "
            "were what when where whether which while who why will with without yes yesterday yet you your"
        ),
    ),
    "de": _abbreviations(
        commonest="der die und das ist nicht den von zu auf",
        titles="dr dres prof hr hrn fr frl ing dipl.-ing dipl.-kfm mag st",
        others=(
            "abt adr allg amtl apr aug ausg bibl bzw ca chr dez dtzd ehem eigtl einschl entspr erw etc ev evtl exkl "
            "feb febr folg frz geb gebr gem gest ggf ggfs hbf hptst hrsg inh inkl jahrh jan jew jh jhrl kath kfm kgl "
            "mio mrd mtl näml nov okt österr pfd proz röm schweiz sek sep sept sog std str südd tägl tel u.a urspr "
            "usw verf verh verw vgl ztr zzgl a.a.o a.d a.m a.rh b.w d.h d.j e.v i.a i.b i.d.r i.h i.j i.r i.v k.u.k "
            "m.e m.w n.chr n.u.z o.a o.ä o.b o.g p.a s.a s.o s.u u.a.m u.a.w.g u.s u.s.a u.u u.v.a u.z u.ä v.a v.chr "
            "v.h v.t v.u.z z.b z.hd z.t z.z z.zt co inc ltd"
        ),
        before_numbers="nr nrn s abs art bd bde kap abb tab ziff",
        starters=(
            "aber alle als am an auch auf aus bei bis da dabei damit dann das dass dem den denn der des deshalb die "
            "dies diese dieser dieses doch dort durch ein eine einem einen einer er erst es für gegen hier ich ihr "
            "ihre im in ja jeder jedoch jetzt kein man mein mit nach nicht noch nun nur ob obwohl ohne seine seit "
            "sich sie sind so sondern über um und unter vom von vor während was weil wenn wer wie wir wo zu zum zur "
            "zwar zwischen"
        ),
        after_numbers=(
            "januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert "
            "jahrhunderts jan jän feb febr mrz apr aug sep sept okt nov dez jh jhd"
        ),
    ),
    "es": _abbreviations(
        commonest="de la que el en y los las del una",
        titles=(
            "sr sra srta sres sras srtas dr dra drs dras dª dña dn lic licdo licda ldo lda lcdo lcda ing prof profa "
            "excmo excma exmo exma ilmo ilma rvdo rvdmo mons gral sto sta mr mrs"
        ),
        others=(
            "a.c d.c a.m p.m p.ej e.g etc ee.uu ee uu jj.oo cc.oo ff.cc rr.hh ss.mm ss.aa s.a s.l ltd ltda ltdo inc "
            "corp cía co av avda cf cfr aprox apdo dpto dptos depto deptos dto ed eds ej hnos tel vd vds ud uds vda "
            "vs v.gr prov ene feb abr jun jul ago sept oct nov dic lun jue vie sáb c.p r.d r.u o.m u.s u.s.a"
        ),
        before_numbers="núm núms nº p pp pág págs cap caps art arts vol fig figs",
        starters=(
            "a además ahora al algunos antes así aunque como con cuando cuatro de del desde después dos durante el él "
            "ella ellos en entonces entre era es esa ese eso esta estaba estas este esto estos fue ha hasta hay la "
            "las le les lo los más mi mientras muchos muy no nos nosotros o otro otros para pero por porque pues que "
            "qué quien se según si sí sin sobre son su sus también tras un una unos y ya yo"
        ),
    ),
    "fr": _abbreviations(
        commonest="de la le les et des à est en du",
        titles="m mm mme mmes mlle mlles dr drs mgr prof st ste",
        others=(
            "adj adr apr aux av avr bd boul broch cf coll collab déc dép éd édit équiv etc exempl févr gouv hab hôp "
            "imprim inc indus janv juil ltd nov oct p.ex p.-d.g p.s réf s.a s.a.r.l s.v.p sept tél trad u.s u.s.a vol "
            "vs j.-c"
        ),
        before_numbers="n no nº p pp vol fig art chap t",
        starters=(
            "à après au aussi aux avant avec car ce cela celle celui ces cet cette chaque ci comme dans de depuis des "
            "deux donc du elle elles en encore enfin ensuite entre est et ici il ils je la là le les leur leurs lors "
            "lorsque l mais malgré mes mon ne ni non nos notre nous on or ou où par parce pendant plus plusieurs pour "
            "pourtant puis quand que quel quelques qui sa sans se selon ses si soit son sous sur tous tout toute "
            "toutefois très trois tu un une vers voici voilà vos votre vous y"
        ),
    ),
    "it": _abbreviations(
        commonest="di e che la il in della per non del",
        titles="sig sigg sig.ra sig.na sig.re dott dott.ssa dr prof prof.ssa avv ing arch geom rag on mons",
        others=(
            "a.c d.c c.c.p cfr ecc es feb apr giu lug ago sett ott nov dic ed int ltd inc n.b n.d.a n.d.e n.d.r n.d.t "
            "o.d.g p.es p.i p.s rif s.a s.p.a s.r.l s.n.c sez tel u.s u.s.a vs"
        ),
        before_numbers="n nn pag pagg p pp art artt vol fig tav cap tab",
        starters=(
            "a ad al alla alle anche ancora appena attualmente che chi come con così da dal dalla de degli dei del "
            "della delle di dopo dove due durante e è ed egli era essa essi esso fra fu gli ha hanno i il in infatti "
            "inoltre io invece l la le lei lo loro lui ma mentre molti nel nella nelle nessuno noi non nonostante o "
            "ogni oltre oggi ora per perché però più poi prima qual quando quasi quella quelle quelli quello questa "
            "queste questi questo qui quindi se secondo senza si sia sono sotto su sul sulla suo tra tre tutti tutto "
            "un una uno voi"
        ),
    ),
    "pt": _abbreviations(
        commonest="de que o a e do da em os não",
        titles="sr sra srs sras dr dra drs dras prof profa exmo exma ilmo ilma eng arq pe sto sta",
        others=(
            "a.c d.c a.m p.m abr abrev ago apt av bras cf cia cx créd depto dez div ed etc fev jan jul jun ltda ltd "
            "obs org p.ex pq r.s.v.p s.a séc sécs tel univ u.s u.s.a v.t vs"
        ),
        before_numbers="n nº núm p pp pág págs art cap caps fig vol",
        starters=(
            "a agora ainda além algumas alguns antes ao aos apesar após aquele as assim até cada com como contudo da "
            "das de depois desde dos durante e é ela elas ele eles em embora enquanto então entre era essa essas esse "
            "esses esta estas este estes eu foi há isso isto já mais mas muitos na não nas nem no nos nós o onde os "
            "ou outro outros para pela pelo por porém porque quando que quem se segundo sem seu seus sob sobre sua "
            "suas também todos três um uma você"
        ),
    ),
    "ru": _abbreviations(
        commonest="в что как или его это из был она для",
        titles="проф акад св тов д-р г-н г-жа ул",
        others=(
            "т.е т.д т.п т.к т.н т.о н.э до.н.э др руб коп тыс млн млрд кв отд ред изд обл р-н янв фев февр апр "
            "авг сент окт нояб дек англ лат нем см ср напр"
        ),
        before_numbers="стр с гл рис табл ст п пп",
        starters=(
            "а более без благодаря больше будет был была были было в вам вас весь во вот все всё всего вы где да даже "
            "для до его ее её если есть еще ещё за здесь и из или им их к каждый как когда кто который мне мои мой мы "
            "на над нас не нет ни но ну о об однако он она они оно от очень по под поэтому при про с сам свои себя "
            "сейчас со так также такие там тем теперь то тогда того только тоже три ты у уже хотя через что чтобы это "
            "эта эти этот я"
        ),
    ),
}


def language_of(texts: Iterable[str]) -> str | None:
    """Return the code of the language of the texts, recognized by its most common words; None if it is unknown."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    shares = {
        code: sum(counts[word] for word in language.commonest) / max(1, counts.total())
        for code, language in LANGUAGES.items()
    }
    best, second = sorted(shares, key=shares.__getitem__)[:-3:-1]
    num_found = sum(word in counts for word in LANGUAGES[best].commonest)
    is_sure = shares[best] >= max(_MIN_SHARE, _MIN_LEAD * shares[second]) and num_found >= _MIN_FOUND
    return best if is_sure else None
