"use strict";
(function(){
  function ago(at){
    var s=Math.max(0,(Date.now()-at)/1000),units=[[86400,"d"],[3600,"h"],[60,"min"]];
    for(var i=0;i<units.length;i++)if(s>=units[i][0])return Math.floor(s/units[i][0])+" "+units[i][1]+" ago";
    return Math.floor(s)+" s ago";
  }
  // A time is shown as it is written; beside it how long ago that is.
  function times(from){
    from.querySelectorAll("time").forEach(function(t){
      var at=Date.parse(t.dateTime);
      if(isNaN(at))return;
      if(!t.title)t.title=t.textContent;
      t.textContent=t.title.replace(/T(\d\d:\d\d:\d\d).*/," $1 UTC")+" ("+ago(at)+")";
    });
  }
  times(document);
  setInterval(function(){times(document)},30000);
  // The name of a cell's node, made when it is needed: thousands of titles would double the page.
  document.addEventListener("mouseover",function(e){
    var cell=e.target.closest&&e.target.closest(".cells .v");
    if(cell&&!cell.title)cell.title=cell.textContent;
  });

  // Tables are sorted by a click on a title, the worst first as the server made them.
  function sorted(table){
    var body=table.tBodies[0],rows=Array.prototype.slice.call(body.rows);
    var order={fail:0,unknown:1,drift:2,warn:3,ok:4,na:5,critical:0,high:1,medium:2,low:3,info:4};
    function key(row,at){
      var cell=row.cells[at];
      if(!cell)return "";
      var text=cell.dataset.key||cell.textContent.trim(),known=order[text];
      return known!==undefined?known:text!==""&&!isNaN(text)?Number(text):text;
    }
    Array.prototype.forEach.call(table.tHead.rows[0].cells,function(th,at){
      if(!th.textContent.trim()||rows.length<2)return;
      var button=document.createElement("button");
      button.type="button";button.textContent=th.textContent;th.textContent="";th.append(button);
      button.addEventListener("click",function(){
        var down=th.getAttribute("aria-sort")==="ascending";
        Array.prototype.forEach.call(table.tHead.rows[0].cells,function(one){one.removeAttribute("aria-sort")});
        th.setAttribute("aria-sort",down?"descending":"ascending");
        rows.slice().sort(function(a,b){
          var x=key(a,at),y=key(b,at);
          var less=typeof x===typeof y?(typeof x==="number"?x-y:x.localeCompare(y,"en",{numeric:true})):typeof x==="number"?-1:1;
          return down?-less:less;
        }).forEach(function(row){body.append(row)});
      });
    });
  }
  document.querySelectorAll("table[data-sort]").forEach(sorted);

  var live=document.getElementById("live");
  if(!live)return;
  var rows=document.getElementById("nodes"),by=function(id){return document.getElementById(id)};
  function put(cell,parts){
    cell.textContent="";
    parts.forEach(function(p){
      if(!p)return;
      if(cell.childNodes.length)cell.append(" ");
      var span=document.createElement("span");span.className=p[0];span.textContent=p[1];cell.append(span);
    });
  }
  function row(at){
    while(rows.rows.length<=at){var r=rows.insertRow();for(var i=0;i<4;i++)r.insertCell()}
    return rows.rows[at];
  }
  function show(n){
    var c=row(n.at).cells,node=n.node;
    put(c[0],[["chip m-"+node.mood,node.state],node.verdict&&["chip c-"+node.verdict,node.verdict]]);
    c[1].textContent=node.name;c[2].textContent=node.doing;c[3].textContent="";
    if(node.since){var t=document.createElement("time");t.dateTime=node.since;t.textContent=node.since;c[3].append(t);times(c[3])}
  }
  var source=new EventSource(live.dataset.events),lost=0;
  source.addEventListener("news",function(e){
    var news=JSON.parse(e.data);
    lost=0;
    by("state").textContent=news.over?"is over":"is running";
    by("status").textContent=news.status;
    var list=by("notices");list.textContent="";
    news.notices.forEach(function(text){var li=document.createElement("li");li.textContent=text;list.append(li)});
    news.nodes.forEach(show);
    if(news.over){source.close();setTimeout(function(){location.reload()},400)}
  });
  source.addEventListener("error",function(){
    by("state").textContent="connection lost, trying again";
    // The browser tries again by itself, unless the server refused.
    if(source.readyState===2||++lost>5){source.close();setTimeout(function(){location.reload()},15000)}
  });
})();
