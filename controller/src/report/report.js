"use strict";
(function(){
  var by=function(id){return document.getElementById(id)};
  var all=function(what,from){return [].slice.call((from||document).querySelectorAll(what))};
  var data=JSON.parse(by("data").textContent),table=data.table,nodes=data.nodes;
  var list=by("list"),box=list.querySelector(".list"),rows=box.querySelector(".rows"),dialog=by("node");
  var tiles=all(".tile"),heads=all("[data-sort]"),q=by("q"),pick=by("group"),said=by("shown");
  // Why text only: nothing that a node says becomes markup.
  function el(name,attributes,children){
    var svg=name==="svg"||name==="rect"||name==="text";
    var e=svg?document.createElementNS(document.querySelector("svg").namespaceURI,name):document.createElement(name);
    Object.keys(attributes||{}).forEach(function(k){if(attributes[k]!==null)e.setAttribute(k,String(attributes[k]))});
    e.append.apply(e,[].concat(children===undefined||children===null?[]:children));
    return e;
  }
  table.forEach(function(v){if(v&&v.about!==undefined)v.about=table[v.about]});
  var word=function(n){return data.verdicts[n.verdict]};
  var action=function(n){var a=data.actions[n.action];return a==="none"?"":a};
  var text=function(n,field){return n[field]===undefined?"":table[n[field]]};
  var items=function(n,field){return (n[field]||[]).map(function(at){return table[at]})};
  var chip=function(verdict){return el("span",{"class":"chip c-"+verdict},verdict)};

  // ---- what is shown
  var state={q:"",verdict:"",control:"",group:"",cause:"",next:"",sort:"",way:1,node:""};
  var words={control:new Map(),group:new Map(),cause:new Map()};
  data.causes.forEach(function(c,at){
    words.cause.set(c.key,at);
    if(!words.control.has(c.control))words.control.set(c.control,[]);
    if(!c.waived)words.control.get(c.control).push(at);
  });
  data.groups.forEach(function(name,at){words.group.set(name,at)});
  var natural=new Intl.Collator("en",{numeric:true});
  // The texts of the table and of each node's name, in small letters, made when they are first looked for.
  var texts=null,refs=null,names=null;
  function strings(value,out){
    if(typeof value==="string")out.push(value);
    else if(value&&typeof value==="object")Object.keys(value).forEach(function(k){strings(value[k],out)});
    return out;
  }
  function prepare(){
    if(texts)return;
    texts=table.map(function(v){return strings(v,[]).join(" ").replace(/\s+/g," ").toLowerCase()});
    names=nodes.map(function(n){
      var groups=n.groups.map(function(at){return data.groups[at]}).join(" ");
      return (n.name+" "+word(n)+" "+action(n)+" "+groups).toLowerCase();
    });
    var inline={verdict:1,action:1,seconds:1,groups:1,causes:1,name:1,out_of_service:1};
    refs=nodes.map(function(n){
      var out=[];
      for(var k in n)if(!inline[k]){if(typeof n[k]==="number")out.push(n[k]);else out.push.apply(out,n[k])}
      return out;
    });
  }
  // Why by the table: a text that a thousand nodes share is compared once.
  function matches(){
    var asked=state.q.toLowerCase().split(/\s+/).filter(Boolean);
    if(asked.length)prepare();
    var hits=asked.map(function(w){
      return Uint8Array.from(texts,function(t){return t.indexOf(w)>=0?1:0});
    });
    var found=function(at,i){
      if(names[at].indexOf(asked[i])>=0)return true;
      for(var here=refs[at],hit=hits[i],r=0;r<here.length;r++)if(hit[here[r]])return true;
      return false;
    };
    var of=function(kind){return state[kind]?words[kind].get(state[kind]):undefined};
    var control=of("control"),group=of("group"),cause=of("cause");
    return function(n,at){
      if(state.verdict&&word(n)!==state.verdict)return false;
      if(state.next&&data.actions[n.action]!==state.next)return false;
      if(state.group&&n.groups.indexOf(group)<0)return false;
      if(state.cause&&n.causes.indexOf(cause)<0)return false;
      if(state.control&&!n.causes.some(function(c){return data.causes[c].control===state.control}))return false;
      for(var i=0;i<asked.length;i++)if(!found(at,i))return false;
      return true;
    };
  }
  var keys={
    verdict:function(n){return String(9-n.verdict)},name:function(n){return n.name},
    hardware:function(n){return text(n,"hardware")},why:function(n){return text(n,"brief")},next:action
  };
  var shown=[],focused=0,made=new Map();
  function select(){
    var match=matches();
    shown=[];
    nodes.forEach(function(n,at){if(match(n,at))shown.push(at)});
    if(state.sort){
      var key=nodes.map(keys[state.sort]);
      shown.sort(function(a,b){
        var x=key[a],y=key[b];
        // Why: rows that have nothing in the column are last, whichever way.
        if(!x!==!y)return x?-1:1;
        return state.way*natural.compare(x,y)||a-b;
      });
    }
    focused=Math.max(0,Math.min(focused,shown.length-1));
    made.forEach(function(e){e.remove()});
    made.clear();
    box.setAttribute("aria-rowcount",String(shown.length+1));
    by("none").hidden=shown.length>0;
    box.hidden=!shown.length;
    said.textContent=shown.length+" of "+nodes.length+" nodes";
    tiles.forEach(function(t){t.setAttribute("aria-pressed",String(t.dataset.verdict===state.verdict))});
    heads.forEach(function(h){
      var way=h.dataset.sort===state.sort?(state.way>0?"ascending":"descending"):"none";
      h.setAttribute("aria-sort",way);
    });
    chosen();
    draw();
  }
  // The choices that no field shows, each with a button that undoes it.
  function chosen(){
    var cause=data.causes[words.cause.get(state.cause)];
    var told={control:state.control,cause:state.cause&&(cause?cause.text:state.cause),next:state.next,group:pick.value===state.group?"":state.group};
    by("active").replaceChildren.apply(by("active"),Object.keys(told).filter(function(k){return told[k]}).map(function(k){
      var b=el("button",{type:"button","class":"choice","aria-label":"Remove the filter "+k+" "+told[k]},[el("b",{},k)," "+told[k]+" ✕"]);
      b.addEventListener("click",function(){state[k]="";select();keep();q.focus()});
      return b;
    }));
    pick.value=words.group.has(state.group)?state.group:"";
  }

  // ---- the rows: only those in sight are in the document
  var height=0;
  // A few nodes are in the document as a whole, so that the browser's own search finds them.
  var MOST_WHOLE=200;
  function row(place){
    var n=nodes[shown[place]],why=text(n,"brief"),name=el("a",{href:"#node="+encodeURIComponent(n.name),tabindex:"-1"},n.name);
    var cell=function(c,children,title){return el("span",{role:"gridcell","class":c,title:title||null},children)};
    var e=el("div",{role:"row","class":"grid row","aria-rowindex":place+2,tabindex:"-1"},[
      cell("v",chip(word(n))),cell("name",name),cell("hw",text(n,"hardware"),text(n,"hardware")),cell("brief",why,why),cell("act",action(n))]);
    e.dataset.place=place;
    return e;
  }
  function draw(){
    if(!height&&shown.length){
      var probe=row(0);
      rows.append(probe);
      height=probe.offsetHeight||38;
      probe.remove();
    }
    rows.style.height=shown.length*height+"px";
    var from=0,to=shown.length;
    if(shown.length>MOST_WHOLE){
      from=Math.max(0,Math.floor(box.scrollTop/height)-8);
      to=Math.min(shown.length,from+Math.ceil((box.clientHeight||900)/height)+16);
    }
    var wanted=function(at){return (at>=from&&at<to)||at===focused};
    made.forEach(function(e,at){if(!wanted(at)){e.remove();made.delete(at)}});
    var fresh=document.createDocumentFragment();
    for(var at=from;at<to;at++)if(!made.has(at)){made.set(at,row(at));fresh.append(made.get(at))}
    if(shown.length&&!made.has(focused)){made.set(focused,row(focused));fresh.append(made.get(focused))}
    rows.append(fresh);
    made.forEach(function(e,at){
      e.style.top=at*height+"px";
      e.tabIndex=at===focused?0:-1;
    });
  }
  function go(place,focus){
    focused=Math.max(0,Math.min(place,shown.length-1));
    var head=box.querySelector(".headgroup").offsetHeight,top=focused*height;
    if(top<box.scrollTop)box.scrollTop=top;
    if(top+height+head>box.scrollTop+box.clientHeight)box.scrollTop=top+height+head-box.clientHeight;
    draw();
    if(focus&&made.has(focused))made.get(focused).focus({preventScroll:true});
  }
  var waits=false;
  box.addEventListener("scroll",function(){
    if(waits)return;
    waits=true;
    requestAnimationFrame(function(){waits=false;draw()});
  });
  window.addEventListener("resize",function(){height=0;made.forEach(function(e){e.remove()});made.clear();draw()});
  rows.addEventListener("keydown",function(event){
    if(event.ctrlKey||event.altKey||event.metaKey)return;
    var page=Math.max(1,Math.floor(box.clientHeight/(height||38))-2);
    var to={ArrowDown:focused+1,ArrowUp:focused-1,PageDown:focused+page,PageUp:focused-page,Home:0,End:shown.length-1}[event.key];
    if(to!==undefined)go(to,true);
    else if(event.key==="Enter"||event.key===" ")open(nodes[shown[focused]].name);
    else return;
    event.preventDefault();
  });
  rows.addEventListener("focusin",function(event){
    var e=event.target.closest(".row");
    if(e&&Number(e.dataset.place)!==focused){focused=Number(e.dataset.place);draw()}
  });
  rows.addEventListener("click",function(event){
    var e=event.target.closest(".row");
    if(!e||event.ctrlKey||event.metaKey||event.shiftKey)return;
    event.preventDefault();
    focused=Number(e.dataset.place);
    open(nodes[shown[focused]].name);
  });

  // ---- one node
  function mig(blocks){
    var label=blocks.map(function(b){return b.profile+" at slice "+b.start}).join(", ")||"no instances";
    var s=el("svg",{"class":"mig",viewBox:"0 0 320 30",width:320,height:30,role:"img","aria-label":label});
    for(var i=0;i<8;i++)s.append(el("rect",{x:i*40+1,y:3,width:38,height:24,rx:3,"class":"free"}));
    blocks.forEach(function(b){
      s.append(el("rect",{x:b.start*40+1,y:1,width:b.size*40-2,height:28,rx:3,"class":"slice"}),
        el("text",{x:b.start*40+b.size*20,y:19},b.size>1?b.profile:b.profile.split(".")[0]));
    });
    return s;
  }
  function heading(name,body){return body&&(!Array.isArray(body)||body.length)?[el("h3",{},name)].concat(body):[]}
  function told(list,make,mono){
    return list.length?[el("ul",{"class":"told"+(mono?" mono":"")},list.map(function(one){return el("li",{},make(one))}))]:[];
  }
  function tasks(list){
    return told(list,function(t){return [el("b",{},t.task),(t.text?": "+t.text:"")+" ",el("span",{"class":"id"},t.place)]});
  }
  function head(names){return el("thead",{},el("tr",{},names.map(function(n){return el("th",{scope:"col"},n)})))}
  function changes(list){
    if(!list.length)return [];
    var body=el("tbody");
    list.forEach(function(c){
      var what=[c.gpu?el("span",{"class":"gpu"},c.gpu+" "):"",c.what,c.possible?el("em",{"class":"possible"}," possible"):""];
      body.append(el("tr",{},[el("td",{},what),el("td",{"class":"value"},c.from===null?"–":c.from),el("td",{"class":"value to"},["→ ",c.to]),
        el("td",{},el("span",{"class":"badge d-"+c.disruption},c.disruption)),el("td",{"class":"place"},[c.task,el("span",{"class":"id"},c.place)])]));
      if(!c.note&&!c.drawn&&!c.diff)return;
      var more=el("td",{colspan:5});
      if(c.note)more.append(el("p",{},c.note));
      if(c.drawn)more.append(el("div",{"class":"layouts"},[el("div",{},["before ",mig(c.before)]),el("div",{},["after ",mig(c.after),c.exact?"":" or other places"])]));
      if(c.diff)more.append(el("pre",{"class":"diff",tabindex:"0"},c.diff));
      body.append(el("tr",{"class":"more"},more));
    });
    return [el("div",{"class":"wide",tabindex:"0",role:"region","aria-label":"Changes"},el("table",{"class":"changes"},[head(["what","from","to","disturbs","task"]),body]))];
  }
  function checks(list){
    return told(list,function(c){
      var a=c.about,place=a.id+" · "+a.severity+(c.aside?" · "+c.aside:"");
      return [chip(c.verdict)," ",c.subject?el("span",{"class":"gpu"},c.subject+" "):"",c.text+" ",el("span",{"class":"id"},place),
        el("details",{"class":"fold"},[el("summary",{},a.title),el("p",{},a.why),el("p",{},a.remedy),
          c.command?el("p",{},["Reads only, on the node: ",el("code",{},c.command)]):"",
          c.destructive?el("div",{"class":"loud c-fail"},[el("b",{},"Destructive. "),a.first+" ",el("code",{},c.destructive)]):""])];
    });
  }
  function gpus(list){
    if(!list.length)return [];
    var body=el("tbody");
    list.forEach(function(g){
      var look=g.look;
      body.append(el("tr",{},[g.indexes,look.name,look.memory,look.ecc,look.mig,look.power,look.compute_mode,look.persistence].map(function(t){return el("td",{},t)})));
      if(look.blocks.length)body.append(el("tr",{"class":"more"},[el("td"),el("td",{colspan:7},mig(look.blocks))]));
      look.errors.forEach(function(e){body.append(el("tr",{"class":"more"},[el("td"),el("td",{colspan:7,"class":"soft"},e)]))});
    });
    return [el("div",{"class":"wide",tabindex:"0",role:"region","aria-label":"GPUs"},
      el("table",{},[head(["GPU","name","memory","ECC","MIG","power limit","compute mode","persistence"]),body]))];
  }
  function topology(t){
    if(!t)return [];
    var d=t.drawing;
    var s=el("svg",{"class":"topology",viewBox:"0 0 "+d.width+" "+d.height,role:"img","aria-label":"Topology: "+d.name});
    d.rects.forEach(function(r){s.append(el("rect",{x:r.x,y:r.y,width:r.width,height:r.height,rx:4,"class":r["class"]}))});
    d.texts.forEach(function(w){s.append(el("text",{x:w.x,y:w.y,"class":w["class"]},w.text))});
    var say=function(a){return [el("b",{},a[0])," "+a[1],a[2]?el("span",{"class":"id"}," next: "+a[2]):""]};
    var bind=function(b){return [el("span",{"class":"gpu"},b[0]+" "),el("code",{},b[1])]};
    return told(t.advice,say).concat([el("div",{"class":"wide",tabindex:"0",role:"region","aria-label":"Topology"},s)],
      t.bindings.length?[el("details",{"class":"fold"},[el("summary",{},"Keep a process near its GPU")].concat(told(t.bindings,bind)))]:[]);
  }
  function alike(n){
    var count=function(at){return nodes.reduce(function(sum,o){return sum+(o.causes.indexOf(at)>=0?1:0)},0)};
    return told(n.causes.filter(function(at){return count(at)>1}),function(at){
      var c=data.causes[at];
      return [el("a",{href:"#cause="+encodeURIComponent(c.key)},count(at)+" nodes"),": "+c.text];
    });
  }
  function detail(n){
    var counts=table[n.counts],read=text(n,"read"),g=items(n,"gpus"),system=items(n,"system"),out=[];
    var add=function(){[].slice.call(arguments).forEach(function(part){out=out.concat(part)})};
    add(el("p",{"class":"meta"},[chip(word(n))," ",el("b",{},action(n)?"next: "+action(n):"")," "+text(n,"hardware")]));
    // What the checks say stands below.
    var brief=text(n,"brief");
    if(brief&&!items(n,"checks").some(function(c){return brief.indexOf(c.text)>=0}))add(el("p",{},brief));
    if(n.message!==undefined)add(el("p",{},text(n,"message")));
    if(n.out_of_service)add(el("p",{"class":"loud c-fail"},"This run took the node out of service and did not bring it back."));
    add(heading("Failed",tasks(items(n,"failed"))),heading("Could not be read",tasks(items(n,"unknown"))),
      heading("What the checks found",checks(items(n,"checks"))),heading("Not done, for a person to decide",changes(items(n,"not_made"))),
      heading("Who holds the GPUs",told(items(n,"clients"),String,true)),
      heading(data.verb==="run"?"Changed by this run":"Differs from what is declared",changes(items(n,"changes"))),
      heading("Written, waiting",told(items(n,"awaiting"),function(w){return [w[0]+" ",el("span",{"class":"badge d-"+w[1]},w[1])]})),
      heading("Not judged: only a run can tell",tasks(items(n,"possible"))),heading("Warnings",told(items(n,"warnings"),String)),
      heading("The same on other nodes",alike(n)),heading("GPUs, as read "+read,gpus(g)),heading("Topology",topology(text(n,"topology"))));
    if(system.length)add(heading(g.length?"System":"System, as read "+read,[el("dl",{},system.map(function(s){return el("div",{},[el("dt",{},s[0]),el("dd",{},s[1])])}))]));
    add(heading("At its scheduler (UTC)",told(items(n,"drains"),function(d){return [el("span",{"class":"gpu"},d[0])," "+d[1]]})),
      heading("Reboots",told(items(n,"reboots"),String)),told(items(n,"errors"),String));
    var groups=n.groups.map(function(at){return data.groups[at]}).join(", ");
    var meta="state "+text(n,"state")+" · "+n.seconds+" s · ok "+counts.ok+", changed "+counts.changed+", failed "+counts.failed+", skipped "+counts.skipped;
    ["judged","checked"].forEach(function(k){if(n[k]!==undefined)meta+=" · "+text(n,k)});
    add(el("p",{"class":"meta"},meta+(groups?" · groups "+groups:"")));
    var digests=items(n,"digests");
    if(digests.length)add(el("details",{"class":"fold"},[el("summary",{},"digests in full")].concat(told(digests,String,true))));
    return out;
  }
  function fill(name){
    var n=nodes.find(function(n){return n.name===name});
    if(!n)return false;
    by("who").textContent=n.name;
    by("body").replaceChildren.apply(by("body"),detail(n));
    // The page on paper has it below the summary.
    by("printed").replaceChildren.apply(by("printed"),[el("h2",{},n.name)].concat(detail(n)));
    return true;
  }
  function open(name){
    if(!fill(name))return;
    state.node=name;
    if(!dialog.open)dialog.showModal();
    dialog.scrollTop=0;
    by("body").scrollTop=0;
    by("who").focus();
    keep();
  }
  function closed(){
    by("printed").replaceChildren();
    if(!state.node)return;
    var at=shown.findIndex(function(at){return nodes[at].name===state.node});
    state.node="";
    keep();
    if(at>=0)go(at,true);else q.focus();
  }
  function shut(){dialog.close();closed()}
  dialog.addEventListener("close",closed);
  // Why not the event alone: it comes later, and would take the focus back from the next key.
  dialog.addEventListener("keydown",function(event){if(event.key==="Escape"){event.preventDefault();shut()}});
  by("close").addEventListener("click",shut);
  dialog.addEventListener("click",function(event){if(event.target===dialog)shut()});

  // ---- the address
  var kept=["q","verdict","control","group","cause","next"];
  function keep(){
    var p=new URLSearchParams();
    kept.forEach(function(k){if(state[k])p.set(k,state[k])});
    if(state.sort)p.set("sort",(state.way<0?"-":"")+state.sort);
    if(state.node)p.set("node",state.node);
    var text=p.toString();
    if(text===location.hash.slice(1))return;
    try{history.replaceState(null,"",text?"#"+text:location.pathname+location.search)}catch(e){location.hash=text}
  }
  function recall(event){
    var hash=location.hash.slice(1);
    var bare=hash.indexOf("=")<0;
    // A place in the page; without one of that name, it is a node's.
    if(bare&&event&&by(hash))return;
    var p=new URLSearchParams(bare?{node:hash}:hash),sort=p.get("sort")||"",node=p.get("node")||"";
    kept.forEach(function(k){state[k]=p.get(k)||""});
    if(data.verdicts.indexOf(state.verdict)<0)state.verdict="";
    if(data.actions.indexOf(state.next)<0)state.next="";
    state.way=sort.charAt(0)==="-"?-1:1;
    sort=sort.replace(/^-/,"");
    state.sort=Object.prototype.hasOwnProperty.call(keys,sort)?sort:"";
    state.node="";
    q.value=state.q;
    if(dialog.open)dialog.close();
    box.scrollTop=focused=0;
    select();
    if(node)open(node);
    // A link of the page leads to the list; the page as it was sent begins at its top.
    else if(event){list.scrollIntoView();list.focus({preventScroll:true})}
  }
  q.addEventListener("input",function(){state.q=q.value;box.scrollTop=focused=0;select();keep()});
  q.addEventListener("keydown",function(event){
    if(event.key==="ArrowDown"||event.key==="Enter"){event.preventDefault();if(shown.length)go(focused,true)}
    if(event.key==="Escape"&&q.value){event.preventDefault();q.value=state.q="";select();keep()}
  });
  pick.addEventListener("change",function(){state.group=pick.value;box.scrollTop=focused=0;select();keep()});
  tiles.forEach(function(t){t.addEventListener("click",function(){
    state.verdict=state.verdict===t.dataset.verdict?"":t.dataset.verdict;box.scrollTop=focused=0;select();keep();
  })});
  heads.forEach(function(h){h.firstElementChild.addEventListener("click",function(){
    if(state.sort!==h.dataset.sort){state.sort=h.dataset.sort;state.way=1}else if(state.way>0)state.way=-1;else{state.sort="";state.way=1}
    select();keep();
  })});
  all("[data-group]").forEach(function(g){g.addEventListener("click",function(){
    location.hash="group="+encodeURIComponent(g.dataset.group);
  })});
  document.querySelector(".skip").addEventListener("click",function(event){event.preventDefault();list.scrollIntoView();list.focus()});
  document.addEventListener("keydown",function(event){
    if(dialog.open||event.altKey)return;
    var typing=/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    // Why also the browser's own search: it finds only rows that are in sight. Asked again from the field, it comes.
    var search=(event.ctrlKey||event.metaKey)&&event.key==="f"&&nodes.length>MOST_WHOLE;
    if(event.target===q||!(search||(event.key==="/"&&!typing&&!event.ctrlKey&&!event.metaKey)))return;
    event.preventDefault();
    q.focus();
    q.select();
    list.scrollIntoView();
  });
  window.addEventListener("hashchange",recall);
  data.groups.forEach(function(name){pick.append(el("option",{value:name},name))});
  pick.parentElement.hidden=!data.groups.length;
  if(nodes.length){document.documentElement.classList.add("js");list.hidden=false}
  recall();
  // So that the first search does not wait for it.
  window.addEventListener("load",function(){setTimeout(prepare,0)});
})();
