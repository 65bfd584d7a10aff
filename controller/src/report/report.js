"use strict";
(function(){
  var all=function(what,from){return [].slice.call((from||document).querySelectorAll(what))};
  var list=document.querySelector(".nodes"),nodes=all("details.node"),tiles=all(".tile"),heads=all(".gridhead button");
  var q=document.getElementById("q"),shown=document.getElementById("shown"),verdict="",sort="",way=1;
  // Why the whole node and not its first line: what is folded can be looked for too.
  var texts=new Map(nodes.map(function(n){return [n,n.textContent.replace(/\s+/g," ").toLowerCase()]}));
  var first=new Map(nodes.map(function(n,i){return [n,i]}));
  var natural=new Intl.Collator("en",{numeric:true});
  function key(n){
    if(sort==="verdict")return String(9-Number(n.dataset.rank));
    var cell=n.querySelector("summary ."+{name:"name",hardware:"hw",why:"brief",next:"act"}[sort]);
    return cell?cell.textContent:"";
  }
  function order(){
    var keys=new Map(nodes.map(function(n){return [n,sort?key(n):""]}));
    nodes.sort(function(a,b){
      var x=keys.get(a),y=keys.get(b);
      // Why: rows that have nothing in the column are last, whichever way.
      if(!x!==!y)return x?-1:1;
      return way*natural.compare(x,y)||first.get(a)-first.get(b);
    });
    nodes.forEach(function(n){list.appendChild(n)});
    heads.forEach(function(h){
      if(h.dataset.sort===sort)h.dataset.way=String(way);else delete h.dataset.way;
    });
  }
  function show(){
    var words=q.value.toLowerCase().split(/\s+/),count=0;
    nodes.forEach(function(n){
      var on=(!verdict||n.dataset.verdict===verdict)&&words.every(function(w){return texts.get(n).indexOf(w)>=0});
      n.hidden=!on;if(on)count++;
    });
    shown.textContent=count+" of "+nodes.length;
    tiles.forEach(function(t){t.setAttribute("aria-pressed",String(t.dataset.verdict===verdict))});
  }
  function keep(){
    var p=new URLSearchParams();
    if(q.value)p.set("q",q.value);
    if(verdict)p.set("verdict",verdict);
    if(sort)p.set("sort",(way<0?"-":"")+sort);
    nodes.forEach(function(n){if(n.open)p.append("open",n.dataset.name)});
    var text=p.toString(),now=location.hash.slice(1);
    if(text!==now){try{history.replaceState(null,"",text?"#"+text:location.pathname+location.search)}catch(e){location.hash=text}}
  }
  function recall(){
    var p=new URLSearchParams(location.hash.slice(1)),s=p.get("sort")||"",open=p.getAll("open");
    q.value=p.get("q")||"";verdict=tiles.some(function(t){return t.dataset.verdict===p.get("verdict")})?p.get("verdict"):"";
    way=s.charAt(0)==="-"?-1:1;s=s.replace(/^-/,"");sort=heads.some(function(h){return h.dataset.sort===s})?s:"";
    nodes.forEach(function(n){n.open=open.indexOf(n.dataset.name)>=0});
    order();show();
  }
  q.addEventListener("input",function(){show();keep()});
  tiles.forEach(function(t){t.addEventListener("click",function(){
    verdict=verdict===t.dataset.verdict?"":t.dataset.verdict;show();keep();
  })});
  heads.forEach(function(h){h.addEventListener("click",function(){
    if(sort!==h.dataset.sort){sort=h.dataset.sort;way=1}else if(way>0)way=-1;else{sort="";way=1}
    order();keep();
  })});
  nodes.forEach(function(n){n.addEventListener("toggle",keep)});
  window.addEventListener("hashchange",recall);
  recall();
})();
